"""One trajectory, printed for a person: what was asked, sampled, done, seen and scored.

A header with the outcome, then the branches of the token graph in the order they were written. Each reply
carries its call (finish reason, parse status, drift, retry) and the steps that it caused in the world. Lines
that begin with ">" were sampled. Colour adds the probability of each sampled token; without it (in a pipe)
all the words are still there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.text import Text

from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Call, EnvStep, FloatArray, Message, Node, Trajectory
from palestra.viewer.outcome import header, summary_table
from palestra.viewer.text import beside, cut, number, one_line, visible
from palestra.viewer.tokens import PROMPT_STYLE, Decode, legend, runs

__all__ = ["show", "summary_table"]

MAX_CHARS = 2000
_GIVEN, _SAMPLED = "    ", "  > "
_ANCHOR_CHARS = 16
_BAD = "bold red"


def show(
    trajectory: Trajectory,
    *,
    console: Console,
    advantages: FloatArray | None = None,
    tokenizer: Decode | None = None,
    max_chars: int | None = MAX_CHARS,
) -> None:
    """Print `trajectory`.

    `advantages`: one per step, shape (len(trajectory.steps),). `tokenizer`: token ids to text; without one
    the text of the messages is shown. A message longer than `max_chars` is cut in the middle; None shows all.

    Raises ValueError where there are not as many advantages as steps, and GraphError where the nodes form no
    graph.
    """
    if advantages is not None and advantages.shape != (len(trajectory.steps),):
        raise ValueError(
            f"{len(trajectory.steps)} steps, advantages of shape {advantages.shape}: one for each"
        )
    page = _Page(trajectory, advantages, console, tokenizer, max_chars)
    console.print(header(trajectory, console.encoding))
    page.print()


class _Page:
    """The branches of one trajectory, and where to print them."""

    def __init__(
        self,
        trajectory: Trajectory,
        advantages: FloatArray | None,
        console: Console,
        tokenizer: Decode | None,
        max_chars: int | None,
    ) -> None:
        self._graph = TokenGraph(trajectory.nodes)
        self._calls: dict[int, list[Call]] = {}
        for call in trajectory.calls:
            self._calls.setdefault(call.node_id, []).append(call)
        self._steps = list(enumerate(trajectory.steps))
        self._advantages, self._console = advantages, console
        self._tokenizer, self._max_chars = tokenizer, max_chars

    def print(self) -> None:
        if self._tokenizer is not None and self._console.color_system is not None:
            self._console.print(legend())
        shown: set[int] = set()
        leaves = list(self._graph.leaves())
        for branch, leaf in enumerate(leaves, 1):
            self._branch(f"branch {branch} of {len(leaves)}", leaf, shown)
        known = {c.seq for node in self._graph.nodes for c in self._calls.get(node.node_id, [])}
        rest = [(place, step) for place, step in self._steps if step.call not in known]
        if rest:
            self._rule("steps that no recorded reply caused")
        for place, step in rest:
            self._step(place, step)

    def _branch(self, title: str, leaf: int, shown: set[int]) -> None:
        path = self._graph.path(leaf)
        new = [node for node in path if node.node_id not in shown]
        self._rule(f"{title}: {len(path)} messages, {self._graph.path_length(leaf)} tokens")
        if len(new) < len(path):
            above = f"goes on from node {new[0].parent}; what comes before is shown above"
            self._console.print(Text(above, PROMPT_STYLE))
        for node in new:
            self._message(node)
        shown.update(node.node_id for node in new)

    def _message(self, node: Node) -> None:
        calls = self._calls.get(node.node_id, [])
        title = Text(self._clean(node.message.role), "bold")
        title.append(f"  node {node.node_id}{_token_facts(node)}", f"not bold {PROMPT_STYLE}")
        self._console.print()
        self._console.print(title)
        for call in calls:
            self._beside("  ", _call_facts(call))
        self._body(node)
        caused_by = {call.seq for call in calls}
        for place, step in self._steps:
            if step.call in caused_by:
                self._step(place, step)

    def _body(self, node: Node) -> None:
        if self._tokenizer is not None and len(node.token_ids):
            for sampled, text in runs(node, self._tokenizer, self._console.encoding):
                self._beside(_SAMPLED if sampled else _GIVEN, text)
            return
        sampled = bool(node.sampled.any()) or node.node_id in self._calls
        text = Text(self._clean(_message_text(node.message)), "" if sampled else PROMPT_STYLE)
        self._beside(_SAMPLED if sampled else _GIVEN, text)

    def _step(self, place: int, step: EnvStep) -> None:
        line = Text("  ").append(f"step {step.index}", "bold")
        line.append(f"  reward {number(step.reward)}", "bold" if step.reward else "")
        if self._advantages is not None:
            value = float(self._advantages[place])
            line.append(f"  advantage {value:+.3f}", "green" if value > 0 else "red" if value < 0 else "")
        line.append("  valid" if step.valid_action else "  INVALID", "" if step.valid_action else _BAD)
        line.append(f"  anchor {one_line(self._clean(step.anchor), _ANCHOR_CHARS)}", PROMPT_STYLE)
        for flag in ("terminated", "truncated"):
            line.append(f"  {flag}" if getattr(step, flag) else "", "yellow")
        self._console.print(line)
        for name, text in (("did", step.action), ("saw", step.observation)):
            room = max(20, self._console.width - 11)
            self._console.print(Text(f"    {name}  {one_line(self._clean(text), room)}", PROMPT_STYLE))

    def _rule(self, title: str) -> None:
        self._console.print()
        self._console.rule(Text(title, "bold"), characters="-", align="left", style=PROMPT_STYLE)

    def _beside(self, gutter: str, text: Text) -> None:
        for line in beside(gutter, cut(text, self._max_chars), self._console):
            self._console.print(line)

    def _clean(self, text: str) -> str:
        return visible(text, self._console.encoding)


def _call_facts(call: Call) -> Text:
    facts = Text(
        f"call {call.seq}  {call.duration_s:.2f} s  policy {call.policy_version}  {call.prompt_mode}"
    )
    facts.append(f"  {call.finish_reason}", "" if call.finish_reason == "stop" else "yellow")
    facts.append(f"  parse {call.parse_status}", _BAD if call.parse_status == "malformed" else "")
    if call.role != "agent":
        facts.append(f"  {call.role}", "magenta")
    if call.retry_of is not None:
        facts.append(f"  retry of call {call.retry_of}", "yellow")
    if call.drift is not None:
        facts.append(f"  drift: {visible(call.drift.kind)} at {call.drift.position}", "yellow")
    if not call.delivered:
        facts.append("  NOT DELIVERED", _BAD)
    return facts


def _token_facts(node: Node) -> str:
    if not len(node.token_ids):
        return ""
    if not len(node.logprobs):
        return f"  {len(node.token_ids)} tokens"
    mean, lowest = float(np.mean(node.logprobs)), float(np.min(node.logprobs))
    return (
        f"  {len(node.token_ids)} tokens, {len(node.logprobs)} sampled, "
        f"mean log-probability {mean:.2f}, lowest {lowest:.2f}"
    )


def _message_text(message: Message) -> str:
    return "\n".join(_parts(message)) or "(empty)"


def _parts(message: Message) -> Iterator[str]:
    if message.tool_call_id is not None:
        yield f"[answers {message.tool_call_id}]"
    if message.reasoning:
        yield f"[reasoning] {message.reasoning}"
    if message.content:
        yield message.content
    for call in message.tool_calls:
        yield f"[tool call {call.id}] {call.name} {call.arguments}"
    for media in message.media:
        yield f"[{media.mime} {media.sha256[:12]} at character {media.offset}]"
