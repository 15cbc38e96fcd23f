"""Anthropic Messages: POST /v1/messages, streamed or not, and /v1/messages/count_tokens.

`system` becomes the first message; system messages in mid-conversation stay where they are. cache_control
means nothing here, and Claude Code's billing block, which changes from call to call, is left out of the
prompt. Thinking blocks are sent to callers that turned thinking on; their signature carries the reply id.
`return_token_ids: true` adds prompt_token_ids and token_ids to the message (in a stream: to message_delta).
Tools without an input_schema (web_search and other tools of Anthropic's servers) are not offered to the model.

Source of the shapes: the Anthropic API reference and what real clients were seen to send and accept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from palestra.harness_proxy.dialects import shared
from palestra.harness_proxy.dialects.base import Reply, Request
from palestra.harness_proxy.errors import BadRequestError, BodyTooLargeError, ContextLengthError, RequestError
from palestra.harness_proxy.media import Attachments
from palestra.trajectories.model import Message, Role, ToolCall

CALL_PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"

_SAMPLING_KEYS = (
    ["temperature", "top_p", "top_k", "max_tokens", "stop_sequences"]
    + ["thinking", "output_config", "tool_choice"]
)  # fmt: skip
_BILLING = "x-anthropic-billing-header"
_STATUS = {503: 529}
"""Anthropic's own status for "overloaded"."""


class AnthropicDialect:
    """See the module. Stateless."""

    name = "anthropic"
    prefix = CALL_PATH

    def serves(self, path: str) -> bool:
        return path == CALL_PATH

    def counts(self, path: str) -> bool:
        return path == COUNT_PATH

    def side_reply(self, method: str, path: str, model_name: str) -> bytes | None:
        return None

    def decode(self, body: Any, target: str = "") -> Request:
        fields = shared.require(dict, body, "the body")
        messages = shared.require(list, fields.get("messages"), "messages")
        if not messages:
            raise BadRequestError("messages must have at least one message")
        system, role = _system(fields.get("system"))
        tools, left_out = _tools(shared.optional(list, fields.get("tools"), "tools") or [])
        return Request(
            body=fields,
            turns=[*system, *messages],
            tools=tools,
            requested={k: fields[k] for k in _SAMPLING_KEYS if k in fields},
            unapplied=(*_unapplied(fields), *left_out),
            max_tokens=shared.token_limit(fields.get("max_tokens"), "max_tokens"),
            stream=fields.get("stream") is True,
            token_ids=fields.get("return_token_ids") is True,
            role=role,
        )

    def read(self, turn: Any, attachments: Attachments | None = None) -> Sequence[Message]:
        fields = shared.require(dict, turn, "a message")
        role, content = fields.get("role"), fields.get("content")
        if role == "system":
            return (Message("system", shared.texts(content, ("text",), "content")),)
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if role == "user":
            return _user(_blocks(blocks), attachments)
        if role == "assistant":
            return (_assistant(_blocks(blocks)),)
        raise BadRequestError(f"role must be user, assistant or system, got {str(role)[:80]!r}")

    def reply_id(self, turn: Any) -> str | None:
        content = turn.get("content")
        for block in content if isinstance(content, list) else ():
            words = shared.unmark(block.get("signature"))
            if words:
                return words[0]
        return None

    def encode(self, request: Request, reply: Reply) -> bytes:
        content = [full for full, _ in _content(request, reply)]
        return orjson.dumps(
            _envelope(request, reply)
            | {"content": content, "stop_reason": _stop_reason(reply), "usage": _usage(reply)}
            | shared.token_fields(request, reply)
        )

    def stream(self, request: Request, reply: Reply) -> bytes:
        return b"".join(shared.event(e["type"], e) for e in _events(request, reply))

    def encode_count(self, tokens: int) -> bytes:
        return orjson.dumps({"input_tokens": tokens})

    def status(self, error: RequestError) -> int:
        return _STATUS.get(error.status, error.status)

    def error(self, error: RequestError) -> bytes:
        kind = "request_too_large" if isinstance(error, BodyTooLargeError) else error.kind
        message = _too_long(error) if isinstance(error, ContextLengthError) else str(error)
        body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}
        return orjson.dumps(body)


# Requests.


def _system(system: Any) -> tuple[list[dict[str, Any]], Role | None]:
    """The system message as a turn, without what changes from call to call; and whose prompt it says it is.

    Blocks are documents of their own: they are set apart by an empty line.
    """
    if system is None:
        return [], None
    if isinstance(system, str):
        return [{"role": "system", "content": system}], None
    written = [shared.texts([b], ("text",), "system") for b in shared.require(list, system, "system")]
    billing = [text for text in written if text.startswith(_BILLING)]
    role: Role | None = "subagent" if any("cc_is_subagent=true" in text for text in billing) else None
    kept = "\n\n".join(text for text in written if not text.startswith(_BILLING))
    return [{"role": "system", "content": kept}] if kept else [], role


def _tools(tools: list[Any]) -> tuple[tuple[Mapping[str, Any], ...], list[str]]:
    """(definitions, names of those that only Anthropic's servers can run)."""
    definitions, left_out = [], []
    for tool in tools:
        fields = shared.require(dict, tool, "a tool")
        if "input_schema" in fields:
            schema = fields["input_schema"]
            definitions.append(shared.function_tool(fields.get("name"), fields.get("description"), schema))
        else:
            left_out.append(f"tool {str(fields.get('type', fields.get('name')))[:80]}")
    return tuple(definitions), left_out


def _unapplied(fields: Mapping[str, Any]) -> Iterator[str]:
    choice = shared.optional(dict, fields.get("tool_choice"), "tool_choice") or {}
    if choice.get("type", "auto") != "auto":
        yield "tool_choice"
    if fields.get("stop_sequences"):
        yield "stop_sequences"
    if (shared.optional(dict, fields.get("output_config"), "output_config") or {}).get("format"):
        yield "output_config.format"


def _blocks(content: Any) -> list[dict[str, Any]]:
    blocks = shared.require(list, content, "content")
    return [shared.require(dict, block, "a block of content") for block in blocks]


def _user(blocks: list[dict[str, Any]], attachments: Attachments | None) -> list[Message]:
    """Tool results and the text and images between them, in the order sent."""
    messages: list[Message] = []
    text: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            messages += _text_message(text, attachments)
            text = []
            messages.append(_tool_result(block, attachments))
        else:
            text.append(block)
    return messages + _text_message(text, attachments) if text or messages else [Message("user", "")]


def _text_message(blocks: list[dict[str, Any]], attachments: Attachments | None) -> list[Message]:
    if not blocks:
        return []
    content, media = shared.content(blocks, ("text",), "user content", attachments)
    return [Message("user", content, media=media)]


def _tool_result(block: dict[str, Any], attachments: Attachments | None) -> Message:
    call_id = shared.optional(str, block.get("tool_use_id"), "tool_use_id")
    content, media = shared.content(block.get("content"), ("text",), "tool_result content", attachments)
    return Message("tool", content, tool_call_id=call_id, media=media)


def _assistant(blocks: list[dict[str, Any]]) -> Message:
    text, thinking, calls = [], [], []
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            text.append(shared.require(str, block.get("text"), "text"))
        elif kind == "thinking":
            thinking.append(shared.require(str, block.get("thinking"), "thinking"))
        elif kind == "tool_use":
            calls.append(_tool_use(block))
        elif kind != "redacted_thinking":
            raise shared.no_media(kind, "assistant content")
    return Message("assistant", "".join(text), "".join(thinking) if thinking else None, tuple(calls))


def _tool_use(block: dict[str, Any]) -> ToolCall:
    call_id = shared.optional(str, block.get("id"), "the id of a tool_use") or ""
    name = shared.require(str, block.get("name"), "the name of a tool_use")
    arguments = shared.json_text(block.get("input", {}), "the input of a tool_use")
    return ToolCall(call_id, name, arguments)


# Replies.


def _envelope(request: Request, reply: Reply) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": request.body.get("model") or "palestra",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(reply) | {"output_tokens": 0},
    }


def _content(request: Request, reply: Reply) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each block whole, and the deltas that build it from its empty form."""
    message = reply.message
    if message.reasoning is not None and _wants_thinking(request):
        signature = shared.mark(reply.id)
        whole = {"type": "thinking", "thinking": message.reasoning, "signature": signature}
        yield (
            whole,
            [
                {"type": "thinking_delta", "thinking": message.reasoning},
                {"type": "signature_delta", "signature": signature},
            ],
        )
    if message.content:
        text = {"type": "text", "text": message.content}
        yield text, [{"type": "text_delta", "text": message.content}]
    for call in message.tool_calls:
        arguments = shared.strict_json(call.arguments)
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": orjson.Fragment(arguments)}
        yield block, [{"type": "input_json_delta", "partial_json": arguments}]


def _wants_thinking(request: Request) -> bool:
    thinking = request.body.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") in ("enabled", "adaptive")


_EMPTY: Mapping[str, Mapping[str, Any]] = {
    "thinking": {"thinking": "", "signature": ""},
    "text": {"text": ""},
    "tool_use": {"input": {}},
}


def _events(request: Request, reply: Reply) -> Iterator[dict[str, Any]]:
    yield {"type": "message_start", "message": _envelope(request, reply)}
    yield {"type": "ping"}
    for index, (block, deltas) in enumerate(_content(request, reply)):
        opened = {**block, **_EMPTY[block["type"]]}
        yield {"type": "content_block_start", "index": index, "content_block": opened}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stopped = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    tokens = shared.token_fields(request, reply)
    yield {"type": "message_delta", "delta": stopped, "usage": _usage(reply), **tokens}
    yield {"type": "message_stop"}


def _stop_reason(reply: Reply) -> str:
    if reply.finish_reason == "length":
        return "max_tokens"
    return "tool_use" if reply.message.tool_calls else "end_turn"


def _usage(reply: Reply) -> dict[str, Any]:
    """input_tokens are those that were not cached, in this API."""
    return {
        "input_tokens": reply.prompt_tokens - reply.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"thinking_tokens": reply.reasoning_tokens},
    }


def _too_long(error: ContextLengthError) -> str:
    """The words by which Claude Code knows that it must compact."""
    return f"prompt is too long: {error.prompt_tokens} tokens > {error.limit} maximum"
