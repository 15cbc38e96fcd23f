"""Gemini contents to canonical messages.

A content of the model is one assistant message whatever its parts; a content of the user is the tool results
and texts in it, in order. A function response that is one string under `output`, `result` or `error` is that
string, anything else its JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from palestra.harness_proxy.dialects import shared
from palestra.harness_proxy.errors import BadRequestError
from palestra.harness_proxy.media import Attachments, image_url
from palestra.trajectories.model import Media, Message, ToolCall

_ANSWERS = ("output", "result", "error")


def field(fields: Mapping[str, Any], name: str) -> Any:
    """The value of `name`, written in camelCase or in snake_case; None where it is missing."""
    value = fields.get(name)
    return fields.get(_snake(name)) if value is None else value


@lru_cache(maxsize=64)
def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


def read_system(instruction: Any) -> list[dict[str, Any]]:
    """systemInstruction as the first content; none where it says nothing."""
    if instruction is None:
        return []
    fields = {"parts": [{"text": instruction}]} if isinstance(instruction, str) else instruction
    return [{**shared.require(dict, fields, "systemInstruction"), "role": "system"}]


def read_content(content: Any, attachments: Attachments | None = None) -> Sequence[Message]:
    """Messages of one content, its images kept in `attachments`. Raises BadRequestError."""
    fields = shared.require(dict, content, "a content")
    parts = [
        shared.require(dict, part, "a part")
        for part in shared.optional(list, fields.get("parts"), "parts") or ()
    ]
    role = fields.get("role") or "user"
    if role == "model":
        return (_model(parts),)
    if role == "system":
        return (Message("system", _text(parts)),)
    if role in ("user", "function", "tool"):
        return _user(parts, attachments)
    raise BadRequestError(f"role must be user or model, got {str(role)[:80]!r}")


def _model(parts: list[dict[str, Any]]) -> Message:
    called = [part for part in parts if field(part, "functionCall") is not None]
    spoken = [part for part in parts if field(part, "functionCall") is None]
    thoughts = [part for part in spoken if part.get("thought") is True]
    text = _text([part for part in spoken if part.get("thought") is not True])
    ids = next(filter(None, (shared.unmark(field(part, "thoughtSignature")) for part in called)), [""])[1:]
    calls = (_call(part, ids[i] if i < len(ids) else "") for i, part in enumerate(called))
    return Message("assistant", text, _text(thoughts) if thoughts else None, tuple(calls))


def _call(part: dict[str, Any], remembered_id: str) -> ToolCall:
    call = shared.require(dict, field(part, "functionCall"), "functionCall")
    call_id = shared.optional(str, call.get("id"), "the id of a functionCall") or remembered_id
    name = shared.require(str, call.get("name"), "the name of a functionCall")
    return ToolCall(call_id, name, shared.json_text(call.get("args") or {}, "args"))


def _user(parts: list[dict[str, Any]], attachments: Attachments | None) -> list[Message]:
    messages: list[Message] = []
    text: list[dict[str, Any]] = []
    for part in parts:
        response = field(part, "functionResponse")
        if response is None:
            text.append(part)
            continue
        messages += _text_message(text, attachments)
        text = []
        messages.append(_result(response, attachments))
    return messages + _text_message(text, attachments) if text or messages else [Message("user", "")]


def _text_message(parts: list[dict[str, Any]], attachments: Attachments | None) -> list[Message]:
    text, media = _text_and_images(parts, attachments)
    return [Message("user", text, media=media)] if parts else []


def _text_and_images(
    parts: list[dict[str, Any]], attachments: Attachments | None
) -> tuple[str, tuple[Media, ...]]:
    text, media = "", []
    for part in parts:
        url = image_url(part) if attachments is not None and "text" not in part else None
        if url is None or attachments is None:
            text += _part_text(part)
        else:
            media.append(attachments.add(url, len(text)))
    return text, tuple(media)


def _text(parts: list[dict[str, Any]]) -> str:
    return "".join(_part_text(part) for part in parts)


def _part_text(part: dict[str, Any]) -> str:
    if "text" in part:
        return shared.require(str, part["text"], "text")
    if set(part) <= {"thought", "thoughtSignature", "thought_signature"}:
        return ""
    raise shared.no_media(next(iter(part)), "a part")


def _result(response: Any, attachments: Attachments | None) -> Message:
    fields = shared.require(dict, response, "functionResponse")
    answer = _answer(fields.get("response"))
    media = _images_after(answer, shared.optional(list, fields.get("parts"), "parts") or [], attachments)
    name = shared.optional(str, fields.get("name"), "the name of a functionResponse")
    call_id = shared.optional(str, fields.get("id"), "the id of a functionResponse")
    return Message("tool", answer, tool_call_id=call_id, name=name, media=media)


def _images_after(text: str, parts: list[Any], attachments: Attachments | None) -> tuple[Media, ...]:
    """The images that stand beside a function response."""
    media = []
    for part in parts:
        url = image_url(shared.require(dict, part, "a part")) if attachments is not None else None
        if url is None or attachments is None:
            raise shared.no_media("parts", "functionResponse")
        media.append(attachments.add(url, len(text)))
    return tuple(media)


def _answer(response: Any) -> str:
    if isinstance(response, dict) and len(response) == 1:
        ((key, value),) = response.items()
        if key in _ANSWERS and isinstance(value, str):
            return value
    return shared.json_text(response, "a function response")
