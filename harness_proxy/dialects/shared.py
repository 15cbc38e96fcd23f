"""What more than one dialect needs: checks of decoded JSON, the canonical tool, reply marks, the model list.

A *mark* is a reply id as base64, which every client takes for the opaque signature that its API defines and
sends back as it came.
"""

from __future__ import annotations

import base64
import binascii
import json
import reprlib
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import orjson

from palestra.harness_proxy.dialects.base import Reply, Request
from palestra.harness_proxy.errors import BadRequestError, RequestError
from palestra.harness_proxy.media import Attachments, image_url
from palestra.trajectories.model import Media

T = TypeVar("T")

_KINDS: Mapping[type, str] = {dict: "an object", list: "a list", str: "a string"}
_MARK = b"palestra:"


def require(kind: type[T], value: Any, what: str) -> T:
    """`value`, if it is a `kind`. Raises BadRequestError."""
    if isinstance(value, kind):
        return value
    raise BadRequestError(f"{what} must be {_KINDS[kind]}, got {reprlib.repr(value)}")


def optional(kind: type[T], value: Any, what: str) -> T | None:
    """`value`, if it is a `kind` or null. Raises BadRequestError."""
    return None if value is None else require(kind, value, what)


def token_limit(value: Any, name: str) -> int | None:
    """A limit of reply tokens. Raises BadRequestError."""
    if value is None or (isinstance(value, int) and value >= 1 and value is not True):
        return value
    raise BadRequestError(f"{name} must be a positive integer, got {reprlib.repr(value)}")


def texts(content: Any, kinds: Collection[str], what: str) -> str:
    """The text of content: a string, null, or a list of parts whose `type` is one of `kinds`.

    Parts are joined without a separator, so that splitting or merging them changes nothing. Raises
    BadRequestError for anything else, images included.
    """
    if isinstance(content, str):
        return content
    parts = optional(list, content, what) or ()
    return "".join(_text(part, kinds, what) for part in parts)


def content(
    parts: Any, kinds: Collection[str], what: str, attachments: Attachments | None
) -> tuple[str, tuple[Media, ...]]:
    """The text of content as `texts` reads it, and the images in it. Without `attachments` images are refused."""
    if not isinstance(parts, list) or attachments is None:
        return texts(parts, kinds, what), ()
    text, media = "", []
    for part in parts:
        url = image_url(require(dict, part, f"a part of {what}"))
        if url is None:
            text += _text(part, kinds, what)
        else:
            media.append(attachments.add(url, len(text)))
    return text, tuple(media)


def _text(part: Any, kinds: Collection[str], what: str) -> str:
    block = require(dict, part, f"a part of {what}")
    if block.get("type") in kinds:
        return require(str, block.get("text"), f"the text of a part of {what}")
    raise no_media(block.get("type"), what)


def no_media(kind: Any, what: str) -> BadRequestError:
    """The error for a part that is not text."""
    return BadRequestError(
        f"{what} must be text, got {reprlib.repr(kind)}: this model reads no images or files"
    )


def json_text(value: Any, what: str) -> str:
    """Compact JSON of a decoded value. Raises BadRequestError where it is nested too deep."""
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise BadRequestError(f"{what} cannot be read: {error}") from error


def strict_json(arguments: str) -> str:
    """Tool-call arguments as JSON that every client parses: as sampled, but NaN and Infinity, which Python
    reads and JSON has not, become strings."""
    if "NaN" not in arguments and "Infinity" not in arguments:
        return arguments
    return json.dumps(json.loads(arguments, parse_constant=str))


def function_tool(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """The canonical tool definition. Raises BadRequestError."""
    function = {
        "name": require(str, name, "the name of a tool"),
        "description": optional(str, description, "the description of a tool") or "",
        "parameters": optional(dict, parameters, "the schema of a tool") or {"type": "object"},
    }
    return {"type": "function", "function": function}


def mark(reply_id: str, *call_ids: str) -> str:
    """Base64 of a reply id and, for clients that drop them, of the ids of its tool calls."""
    return base64.b64encode(_MARK + " ".join([reply_id, *call_ids]).encode()).decode()


def unmark(text: Any) -> list[str]:
    """What `mark` was given; empty for what this proxy did not write."""
    if not isinstance(text, str):
        return []
    try:
        plain = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):  # ValueError: not ASCII
        return []
    return plain[len(_MARK) :].decode("utf-8", "replace").split(" ") if plain.startswith(_MARK) else []


def models(path: str, model_name: str) -> bytes | None:
    """The answer to GET /v1/models and /v1/models/<name>; None for another path.

    Clients of OpenAI, Anthropic and Google all ask there: each finds the fields of its own API.
    """
    if path == "/v1/models":
        model = _model(model_name)
        pages = {"has_more": False, "first_id": model_name, "last_id": model_name}
        return orjson.dumps({"object": "list", "data": [model], "models": [model], **pages})
    name = path.removeprefix("/v1/models/")
    return orjson.dumps(_model(name)) if name != path and name and ":" not in name else None


def _model(name: str) -> dict[str, Any]:
    openai = {"id": name, "object": "model", "created": 0, "owned_by": "palestra"}
    anthropic = {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    methods = ["generateContent", "streamGenerateContent", "countTokens"]
    google = {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}
    return {**openai, **anthropic, "lifecycle": "active", **google}


def token_fields(request: Request, reply: Reply) -> dict[str, Any]:
    """Token ids of prompt and reply, spelled as vLLM does, for callers that set `return_token_ids`."""
    if not request.token_ids:
        return {}
    return {"prompt_token_ids": reply.prompt_ids, "token_ids": reply.token_ids}


def openai_error(error: RequestError) -> bytes:
    """The error body of both OpenAI APIs."""
    body = {"message": str(error), "type": error.kind, "param": None, "code": error.code}
    return orjson.dumps({"error": body})


def event(name: str, data: Any) -> bytes:
    """One server-sent event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))
