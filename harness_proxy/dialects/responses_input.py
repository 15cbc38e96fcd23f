"""Input items of the Responses API to canonical messages.

One reply is several items: reasoning, then a message, then calls. `grouped` puts the items of a reply
together, so that each group is one assistant message; every other item is a group of its own. A reasoning or
message item after another of its kind, or after a call, begins the next reply (what remains of a stream that
was cut stands beside the reply that was sampled instead). Calls that the proxy numbered as one reply are kept
together where a caller wrote results between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palestra.harness_proxy.dialects import shared
from palestra.harness_proxy.dialects.responses_tools import qualified
from palestra.harness_proxy.errors import BadRequestError
from palestra.harness_proxy.media import Attachments
from palestra.trajectories.model import Message, ToolCall

Group = list[dict[str, Any]]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TEXT = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")
_REASONING, _MESSAGE, _CALL = range(3)


def grouped(items: list[dict[str, Any]]) -> list[Group]:
    """Items of one reply together, all others alone; declarations of tools are no part of the history."""
    groups: list[Group] = []
    numbered: dict[str, Group] = {}
    for item in items:
        if item.get("type") == "additional_tools":
            continue
        number = _numbered_reply(item)
        if number is None and _kind(item) not in (*_CALLS, *_RESULTS):
            numbered = {}
        if number in numbered:
            numbered[number].append(item)
        elif groups and _goes_on(groups[-1][-1], item, number):
            groups[-1].append(item)
        else:
            groups.append([item])
        if number is not None:
            numbered.setdefault(number, groups[-1])
    return groups


def _goes_on(last: Mapping[str, Any], item: Mapping[str, Any], number: str | None) -> bool:
    """Whether `item` belongs to the reply that `last` is of. A call with a number of its own after another
    call does not."""
    before, rank = _rank(last), _rank(item)
    if before is None or rank is None:
        return False
    return rank > before or (rank == before == _CALL and number is None)


def read_items(group: Group, attachments: Attachments | None = None) -> list[Message]:
    """The message that a group is, its images kept in `attachments`. Raises BadRequestError."""
    first = group[0]
    kind = _kind(first)
    if _rank(first) is not None:
        return [_assistant(group)]
    if kind == "message":
        return [_message(first, attachments)]
    if kind in _RESULTS:
        call_id = shared.optional(str, first.get("call_id"), "call_id")
        output, media = shared.content(first.get("output"), _TEXT, "output", attachments)
        return [Message("tool", output, tool_call_id=call_id, media=media)]
    raise BadRequestError(
        f"input items of type {str(kind)[:80]!r} are not served: send messages and tool calls"
    )


def reply_id_of(group: Group) -> str | None:
    """The reply id in the reasoning's encrypted_content, or in the id of its items."""
    for item in group:
        words = shared.unmark(item.get("encrypted_content"))
        if words:
            return words[0]
        prefix, _, rest = str(item.get("id") or "").partition("_")
        if prefix in ("rs", "msg") and rest:
            return rest
    return None


def _kind(item: Mapping[str, Any]) -> Any:
    return item.get("type") or "message"


def _rank(item: Mapping[str, Any]) -> int | None:
    """Where in a reply an item stands; None for what is no part of a reply."""
    kind = _kind(item)
    if kind == "reasoning":
        return _REASONING
    if kind == "message" and item.get("role") == "assistant":
        return _MESSAGE
    return _CALL if kind in _CALLS else None


def _numbered_reply(item: Mapping[str, Any]) -> str | None:
    """What tool calls of one sampled reply have in common: call_<seq>; None for other items."""
    if _kind(item) not in _CALLS:
        return None
    words = str(item.get("call_id")).split("_")
    return words[1] if len(words) == 4 and words[0] == "call" else None


def _message(item: Mapping[str, Any], attachments: Attachments | None = None) -> Message:
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        raise BadRequestError(f"a message needs a role, one of {', '.join(_ROLES)}")
    content, media = shared.content(
        item.get("content"), _TEXT, "content", attachments if role == "user" else None
    )
    return Message(role, content, media=media)


def _assistant(group: Group) -> Message:
    reasoning = [_reasoning(item) for item in group if _rank(item) == _REASONING]
    text = [_message(item).content for item in group if _rank(item) == _MESSAGE]
    calls = tuple(_call(item) for item in group if _rank(item) == _CALL)
    return Message("assistant", "".join(text), "".join(reasoning) or None, calls)


def _reasoning(item: Mapping[str, Any]) -> str:
    return shared.texts(item.get("summary") or item.get("content"), _TEXT, "reasoning")


def _call(item: Mapping[str, Any]) -> ToolCall:
    call_id = shared.optional(str, item.get("call_id"), "call_id") or ""
    name = shared.require(str, item.get("name"), "the name of a call")
    namespace = shared.optional(str, item.get("namespace"), "the namespace of a call")
    if item["type"] == "custom_tool_call":
        written = shared.require(str, item.get("input"), "the input of a custom_tool_call")
        arguments = shared.json_text({"input": written}, "the input of a custom_tool_call")
    else:
        arguments = shared.require(str, item.get("arguments"), "arguments")
    return ToolCall(call_id, qualified(name, namespace), arguments)
