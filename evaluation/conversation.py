"""A trajectory as a conversation to read: messages, sampled tokens with log-probabilities, environment steps.

The token graph is a tree; it is read as branches. The first branch is shown from its first message, every
other one from where it leaves what was shown, so that each message appears once. Branches that end in a
delivered reply of the agent come first, in the order of recording; retries, sub-agents and side calls follow.
What cannot be decoded or parsed is shown as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson

from palestra.evaluation.errors import ReportError
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Call, EnvStep, FloatArray, Node, ToolCall, Trajectory

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens included."""

SHADES = 9
"""Shades of surprise: 0 for a token that was certain, SHADES for one that was almost impossible."""

_LONGEST_CHARACTER_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """The smallest run of tokens that reads as text: one token, or the several that make up one character."""

    text: str
    token_ids: tuple[int, ...]
    logprob: float | None
    """Of all its tokens together, in nats; None for tokens that were given, not sampled."""

    @property
    def shade(self) -> int:
        """0 to SHADES, by one minus the geometric mean probability of the tokens."""
        if self.logprob is None:
            return 0
        return round(SHADES * (1 - min(1.0, float(np.exp(self.logprob / len(self.token_ids))))))


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of the world with its advantage; `observation` is None where a message shows it anyway."""

    step: EnvStep
    advantage: float | None
    observation: str | None


@dataclass(frozen=True, slots=True)
class ToolCallView:
    """A tool call; `arguments` are (name, text) pairs, or None where `raw` is not a JSON object."""

    name: str
    raw: str
    arguments: list[tuple[str, str]] | None
    steps: list[StepView]


@dataclass(frozen=True, slots=True)
class MessageView:
    """One message. `pieces` replace content and reasoning where tokens were sampled and can be decoded."""

    node: Node
    call: Call | None
    pieces: list[Piece]
    tool_calls: list[ToolCallView]
    steps: list[StepView]
    """Steps of this reply that belong to none of its tool calls."""

    @property
    def all_steps(self) -> list[StepView]:
        """Every step that this reply caused, in order."""
        both = [*self.steps, *(s for tool_call in self.tool_calls for s in tool_call.steps)]
        return sorted(both, key=lambda view: view.step.index)


@dataclass(frozen=True, slots=True)
class Branch:
    """Messages in order. `after` is the node they continue from, None for a conversation of its own."""

    messages: list[MessageView]
    after: int | None
    main: bool
    """It ends in a delivered reply of the agent."""
    label: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """All branches, and the steps that no recorded call caused."""

    branches: list[Branch]
    loose_steps: list[StepView] = field(default_factory=list)


def read(trajectory: Trajectory, advantages: FloatArray | None, decode: Decode | None) -> Conversation:
    """Lay out `trajectory`. `advantages` has shape (steps,), in the order of `trajectory.steps`.

    Raises ReportError when its length is another one.
    """
    steps = _steps_by_call(trajectory, advantages)
    calls = {call.node_id: call for call in trajectory.calls}
    loose = [
        view for seq, views in steps.items() if seq not in {c.seq for c in calls.values()} for view in views
    ]
    branches = []
    for new, main in _branches(trajectory, calls):
        messages = [_message(node, calls.get(node.node_id), steps, decode) for node in new]
        branches.append(Branch(messages, new[0].parent, main, _label(calls.get(new[-1].node_id))))
    return Conversation(branches, loose)


def pieces(token_ids: Sequence[int], logprobs: Sequence[float] | None, decode: Decode) -> Iterator[Piece]:
    """Split decoded text token by token; the texts join to the text of the whole.

    A token is decoded next to the piece before it, since some tokenizers drop the space that starts a text.
    Tokens that end in the middle of a character wait for the rest of it.
    """
    context, start = 0, 0
    for end in range(1, len(token_ids) + 1):
        known, text = decode(token_ids[context:start]), decode(token_ids[context:end])
        broken = text.endswith("\N{REPLACEMENT CHARACTER}") and end - start < _LONGEST_CHARACTER_TOKENS
        if broken and end < len(token_ids):
            continue
        total = None if logprobs is None else float(sum(logprobs[start:end]))
        added = text[len(known) :] if text.startswith(known) else decode(token_ids[start:end])
        yield Piece(added, tuple(int(i) for i in token_ids[start:end]), total)
        context, start = start, end


def _steps_by_call(trajectory: Trajectory, advantages: FloatArray | None) -> dict[int | None, list[StepView]]:
    if advantages is not None and np.shape(advantages) != (len(trajectory.steps),):
        raise ReportError(
            f"rollout {trajectory.rollout.rollout_id!r} has {len(trajectory.steps)} steps and advantages of "
            f"shape {np.shape(advantages)}; give one advantage per step"
        )
    said = {node.message.content for node in trajectory.nodes}
    views: dict[int | None, list[StepView]] = defaultdict(list)
    for position, step in enumerate(trajectory.steps):
        advantage = None if advantages is None else float(advantages[position])
        unsaid = None if step.observation in said else step.observation
        views[step.call].append(StepView(step, advantage, unsaid))
    return views


def _branches(trajectory: Trajectory, calls: dict[int, Call]) -> Iterator[tuple[list[Node], bool]]:
    """(nodes not shown before, whether the branch is a main one) for each leaf of the graph."""
    graph = TokenGraph(trajectory.nodes)
    leaves = sorted(graph.leaves(), key=lambda leaf: not _is_main(calls.get(leaf)))
    shown: set[int] = set()
    for leaf in leaves:
        path = graph.path(leaf)
        new = [n for n in path if n.node_id not in shown and not _ends_message(n, graph)]
        if new:
            yield new, _is_main(calls.get(leaf))
        shown |= {n.node_id for n in path}


def _ends_message(node: Node, graph: TokenGraph) -> bool:
    """Whether the node only adds the chat template's closing tokens to the reply before it."""
    if node.parent is None or node.sampled.any():
        return False
    return node.message == graph.nodes[node.parent].message


def _is_main(call: Call | None) -> bool:
    return call is not None and call.delivered and call.role == "agent"


def _label(call: Call | None) -> str:
    if call is None:
        return "not answered"
    return call.role if call.delivered else f"{call.role}, reply not delivered"


def _message(
    node: Node, call: Call | None, steps: dict[int | None, list[StepView]], decode: Decode | None
) -> MessageView:
    own = steps.get(call.seq, []) if call is not None else []
    tool_calls = [_tool_call(tool_call, own) for tool_call in node.message.tool_calls]
    ids = {tool_call.id for tool_call in node.message.tool_calls}
    rest = [view for view in own if view.step.tool_call_id not in ids]
    sampled = list(_node_pieces(node, decode)) if decode is not None and node.sampled.any() else []
    return MessageView(node, call, sampled, tool_calls, rest)


def _node_pieces(node: Node, decode: Decode) -> Iterator[Piece]:
    """Pieces of a reply: given tokens (the generation prompt) and sampled ones, never mixed in one piece."""
    borders = np.flatnonzero(np.diff(node.sampled)) + 1
    drawn = 0
    for run in np.split(np.arange(len(node.token_ids)), borders):
        ids = node.token_ids[run].tolist()
        if node.sampled[run[0]]:
            yield from pieces(ids, node.logprobs[drawn : drawn + len(run)].tolist(), decode)
            drawn += len(run)
        else:
            yield from pieces(ids, None, decode)


def _tool_call(tool_call: ToolCall, steps: Sequence[StepView]) -> ToolCallView:
    own = [view for view in steps if view.step.tool_call_id == tool_call.id]
    return ToolCallView(tool_call.name, tool_call.arguments, _arguments(tool_call.arguments), own)


def _arguments(raw: str) -> list[tuple[str, str]] | None:
    try:
        parsed = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(parsed, dict):
        return None
    return [(k, v if isinstance(v, str) else orjson.dumps(v).decode()) for k, v in parsed.items()]
