"""Which recorded tool call caused a step that came in from outside, through MCP say.

An agent's client tells the world the name and arguments of a call, seldom its id. But the call was sampled before it
was made, and its reply is recorded: so a step belongs to the earliest recorded tool call, not yet taken by a step
before it, of the same tool with the same arguments. Clients put prefixes before the names of tools
("mcp__palestra__query"); arguments are compared as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from palestra.trajectories.model import Call, EnvStep, Node, ToolCall


@dataclass(slots=True)
class _Offer:
    """A tool call that a reply made."""

    seq: int
    call: ToolCall
    taken: bool = False


def joined(steps: Sequence[EnvStep], calls: Sequence[Call], nodes: Sequence[Node]) -> tuple[EnvStep, ...]:
    """`steps` with call and tool_call_id where they were missing and a recorded tool call fits."""
    if all(step.call is not None for step in steps):
        return tuple(steps)
    messages = {node.node_id: node.message for node in nodes}
    delivered = sorted((c for c in calls if c.delivered), key=lambda c: c.seq)
    offers = [_Offer(c.seq, t) for c in delivered for t in messages[c.node_id].tool_calls]
    for step in steps:
        _take(offers, lambda o, step=step: (o.seq, o.call.id) == (step.call, step.tool_call_id))
    return tuple(step if step.call is not None else _join(step, offers) for step in steps)


def _join(step: EnvStep, offers: list[_Offer]) -> EnvStep:
    found = _take(offers, lambda o: step.tool_call_id is not None and o.call.id == step.tool_call_id)
    action = _parsed(step.action)
    if found is None and isinstance(action, dict) and "name" in action:
        found = _take(offers, lambda o: _same(o.call, action))
    return step if found is None else replace(step, call=found.seq, tool_call_id=found.call.id)


def _take(offers: list[_Offer], fits: Any) -> _Offer | None:
    found = next((o for o in offers if not o.taken and fits(o)), None)
    if found is not None:
        found.taken = True
    return found


def _same(call: ToolCall, action: dict[str, Any]) -> bool:
    name = re.escape(str(action["name"]))
    named = re.search(rf"(^|__?|[./:]){name}$", call.name) is not None
    return named and (_parsed(call.arguments or "{}") or {}) == action.get("arguments", {})


def _parsed(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
