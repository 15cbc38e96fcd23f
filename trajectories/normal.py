"""What stays the same when a harness writes a message again.

Harnesses trim text, compact JSON, reorder its keys, spell numbers as JavaScript does, drop nulls and replace ids.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import orjson

from palestra.trajectories.model import Message, ToolCall


def normal_form(message: Message) -> Hashable:
    """Role, trimmed text, attachments and tool calls; ids, reasoning and the spelling of arguments do not
    count."""
    media = tuple(m.sha256 for m in message.media) if message.media else ()
    calls = normal_calls(message.tool_calls) if message.tool_calls else ()
    return (message.role, message.content.strip(), calls, media)


def normal_calls(calls: tuple[ToolCall, ...]) -> Hashable:
    """Names and arguments of tool calls, however they are spelled."""
    return tuple((c.name, normal_arguments(c.arguments)) for c in calls)


def normal_arguments(arguments: str) -> str | bytes:
    """Equal for two spellings of the same JSON; text that is no JSON is trimmed."""
    try:
        return orjson.dumps(_normal_value(orjson.loads(arguments)), option=orjson.OPT_SORT_KEYS)
    except (ValueError, TypeError, RecursionError):  # not JSON, or too deep for it
        return arguments.strip()


def _normal_value(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _normal_value(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_normal_value(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value
