"""Canonical messages as chat messages: the form that OpenAI's API, chat templates and TRL share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from palestra.trajectories.model import Media, Message

Image = Callable[[Media], dict[str, Any]]
"""Makes the content part for an attachment."""


def by_hash(media: Media) -> dict[str, Any]:
    """A content part that names the blob of an image in the store."""
    return {"type": "image", "sha256": media.sha256, "mime": media.mime}


def chat_message(message: Message, image: Image = by_hash) -> dict[str, Any]:
    """`message` with role, content and what else it has; arguments of tool calls stay JSON text.

    With attachments the content is a list of parts, otherwise a string.
    """
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.media:
        wire["content"] = content_parts(message, image)
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    optional = {
        "reasoning_content": message.reasoning,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
    }
    wire.update((k, v) for k, v in optional.items() if v is not None)
    return wire


def content_parts(message: Message, image: Image) -> list[dict[str, Any]]:
    """Text and attachments in the order in which they stand."""
    parts: list[dict[str, Any]] = []
    start = 0
    for media in message.media:
        if media.offset > start:
            parts.append({"type": "text", "text": message.content[start : media.offset]})
        parts.append(image(media))
        start = media.offset
    if start < len(message.content):
        parts.append({"type": "text", "text": message.content[start:]})
    return parts
