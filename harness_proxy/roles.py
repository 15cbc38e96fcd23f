"""Which part a call plays in its rollout: agent, subagent, auxiliary or compaction.

Three sources, the first that speaks decides. Headers and bodies of harnesses that name the part themselves
(codex, claude-code, opencode, copilot), and x-palestra-role: auxiliary from side jobs of our own. The words with
which harnesses are known to ask for a summary or for a side job. And, once the session is closed, the shape of the
whole:

- auxiliary: no tools in a session where others have tools, no assistant message before it, and nothing after
  it (titles, model routers, topic checks);
- subagent: other tools and another system prompt than the first call with tools.

All else is the agent. By default agents and subagents are trained; auxiliary calls and compactions are not,
since the reward of a task says little about a title, and a summary shapes the calls after it, which are
trained (`trajectories.sample.TRAINED_ROLES`; pass other roles to `samples` to change it). "discarded" is never
inferred: the same body twice may be an agent without memory as well as a reply that was thrown away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from palestra.harness_proxy.history import Point
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Call, Role

_SUBAGENT_HEADERS = frozenset(
    (b"x-claude-code-agent-id", b"x-parent-session-id", b"x-codex-parent-thread-id")
)
_INTERACTIONS: Mapping[bytes, Role] = {
    b"conversation-subagent": "subagent",
    b"conversation-compaction": "compaction",
}
_CODEX_COMPACTION = re.compile(rb'"request_kind"\s*:\s*"compact')

_COMPACTION = re.compile(
    r"\s*(You are performing a CONTEXT CHECKPOINT COMPACTION|Please create a detailed summary"
    r"|Your task is to create a detailed summary of the conversation)"
)
"""How the user message begins with which a harness asks for a summary of its own conversation."""
_SUMMARISER = re.compile(
    r"summarizes internal chat history|context summarization assistant|summarizing conversations"
)
"""In the system prompt of a conversation that begins with such a request."""
_SIDE_JOB = re.compile(r"^You are a title generator|^Generate a (?:short|concise) title|complexity_reasoning")
"""The same, for titles and for the choice of a model."""
_SYSTEM_CHARACTERS = 8000
"""How far into a system prompt its purpose is looked for."""


def role_of_headers(headers: Mapping[bytes, bytes]) -> Role | None:
    """What the harness says in its headers; None where it says nothing."""
    if headers.get(b"x-palestra-role") == b"auxiliary":
        return "auxiliary"
    kind = headers.get(b"x-openai-subagent")
    if kind == b"compact" or _CODEX_COMPACTION.search(headers.get(b"x-codex-turn-metadata", b"")):
        return "compaction"
    if kind is not None or not _SUBAGENT_HEADERS.isdisjoint(headers):
        return "subagent"
    return _INTERACTIONS.get(headers.get(b"x-interaction-type", b""))


def role_of_words(point: Point) -> Role:
    """What the system prompt and the last message ask for; agent where they ask for nothing special."""
    last = point.message
    if last is not None and last.role == "user" and _COMPACTION.match(last.content):
        return "compaction"
    reply, history = point.since_reply()
    system = history[0].message if reply is None and history else None
    if system is None or system.role != "system":
        return "agent"
    purpose = system.content[:_SYSTEM_CHARACTERS]
    if _SUMMARISER.search(purpose):
        return "compaction"
    return "auxiliary" if _SIDE_JOB.search(purpose) else "agent"


def with_roles(graph: TokenGraph, calls: Sequence[Call]) -> Iterator[Call]:
    """`calls`, those that are still plain agents judged by their shape in the session."""
    main = next((c for c in calls if c.role == "agent" and c.tools_sha256 is not None), None)
    for call in calls:
        if main is None or call.role != "agent" or call.tools_sha256 == main.tools_sha256:
            yield call
        else:
            yield replace(call, role=_role_by_shape(graph, call, main))


def _role_by_shape(graph: TokenGraph, call: Call, main: Call) -> Role:
    if call.tools_sha256 is not None:
        return "agent" if _prompt(graph, call) == _prompt(graph, main) else "subagent"
    history = graph.path(call.node_id)[:-1]
    alone = not graph.children(call.node_id) and all(n.message.role != "assistant" for n in history)
    return "auxiliary" if alone else "agent"


def _prompt(graph: TokenGraph, call: Call) -> str | None:
    """The system prompt of a call; None where it has none."""
    first = graph.path(call.node_id)[0].message
    return first.content if first.role == "system" else None
