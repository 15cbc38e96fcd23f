"""OpenAI Chat Completions: POST /v1/chat/completions, streamed or not.

Unknown keys and model names are accepted. `n` must be 1; content is text and, where the model takes them, images.
Sampling parameters,
`stop`, `tool_choice` and `response_format` are kept on record and not applied: sampling belongs to the
trainer, and cutting a reply at a stop string would train tokens that the caller never saw. `max_tokens` is
honoured where it is smaller. `return_token_ids: true` adds `prompt_token_ids` and `choices[0].token_ids`,
spelled as vLLM does.

Source of the shapes: the OpenAI API reference and what real clients were seen to send and accept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from palestra.harness_proxy.dialects import shared
from palestra.harness_proxy.dialects.base import Reply, Request
from palestra.harness_proxy.dialects.shared import models, openai_error
from palestra.harness_proxy.errors import BadRequestError, RequestError
from palestra.harness_proxy.media import Attachments
from palestra.trajectories.model import Message, ToolCall

CALL_PATH = "/v1/chat/completions"

_SAMPLING_KEYS = frozenset(
    ["temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "seed", "stop", "n"]
    + [
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
    ]
    + ["reasoning_effort", "tool_choice", "parallel_tool_calls", "response_format"]
)
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stop": (None, [], ""),
    "tool_choice": (None, "auto"),
    "response_format": (None, {"type": "text"}),
}
"""Values with which a parameter asks for nothing."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class ChatDialect:
    """See the module. Stateless."""

    name = "chat"
    prefix = "/v1/chat"

    def serves(self, path: str) -> bool:
        return path == CALL_PATH

    def counts(self, path: str) -> bool:
        return False

    def side_reply(self, method: str, path: str, model_name: str) -> bytes | None:
        if method not in ("GET", "HEAD"):
            return None
        if path in ("/", "/v1"):
            return b'{"status":"ok"}'
        return models(path, model_name)

    def decode(self, body: Any, target: str = "") -> Request:
        if not isinstance(body, dict):
            raise BadRequestError(f"the body must be a JSON object, got {type(body).__name__}")
        turns = body.get("messages")
        if not isinstance(turns, list) or not turns:
            raise BadRequestError("messages must be a list of at least one message")
        if body.get("n") not in (None, 1):
            raise BadRequestError(f"n must be 1, got {body['n']!r}: ask again for another sample")
        if not isinstance(body.get("stream_options"), dict | None):
            raise BadRequestError(
                f"stream_options must be an object, got {str(body['stream_options'])[:200]}"
            )
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        return Request(
            body=body,
            turns=turns,
            tools=_tools(body.get("tools")),
            requested={k: v for k, v in body.items() if k in _SAMPLING_KEYS},
            unapplied=tuple(k for k, neutral in _NEUTRAL.items() if k in body and body[k] not in neutral),
            max_tokens=_max_tokens(limit),
            stream=body.get("stream") is True,
            logprobs=body.get("logprobs") is True,
            token_ids=body.get("return_token_ids") is True,
        )

    def read(self, turn: Any, attachments: Attachments | None = None) -> Sequence[Message]:
        role = _ROLES.get(str(turn.get("role"))) if isinstance(turn, dict) else None
        if role is None:
            raise BadRequestError(
                f"a message needs a role, one of {', '.join(_ROLES)}; got {str(turn)[:200]}"
            )
        reasoning = turn.get("reasoning_content", turn.get("reasoning"))
        images = attachments if role in ("user", "tool") else None
        content, media = shared.content(turn.get("content"), ("text",), "content", images)
        message = Message(
            role,
            content,
            reasoning if role == "assistant" and isinstance(reasoning, str) else None,
            _tool_calls(turn.get("tool_calls")) if role == "assistant" else (),
            _optional_text(turn, "tool_call_id") if role == "tool" else None,
            _optional_text(turn, "name"),
            media,
        )
        return (message,)

    def reply_id(self, turn: Any) -> str | None:
        return None

    def encode(self, request: Request, reply: Reply) -> bytes:
        choice: dict[str, Any] = {"index": 0, "message": _message(reply.message)}
        choice |= {"finish_reason": _finish(reply)} | _token_fields(request, reply)
        envelope = _envelope(request, reply, "chat.completion") | {
            "choices": [choice],
            "usage": _usage(reply),
        }
        if request.token_ids:
            envelope["prompt_token_ids"] = reply.prompt_ids
        return orjson.dumps(envelope)

    def stream(self, request: Request, reply: Reply) -> bytes:
        envelope = _envelope(request, reply, "chat.completion.chunk")
        deltas = [{"index": 0, "delta": d, "finish_reason": None} for d in _deltas(reply.message)]
        last = {"index": 0, "delta": {}, "finish_reason": _finish(reply)} | _token_fields(request, reply)
        chunks = [envelope | {"choices": [choice]} for choice in [*deltas, last]]
        if request.token_ids:
            chunks[0]["prompt_token_ids"] = reply.prompt_ids
        if (request.body.get("stream_options") or {}).get("include_usage"):
            chunks.append(envelope | {"choices": [], "usage": _usage(reply)})
        return b"".join(b"data: %b\n\n" % orjson.dumps(c) for c in chunks) + b"data: [DONE]\n\n"

    def encode_count(self, tokens: int) -> bytes:
        return orjson.dumps({"prompt_tokens": tokens})

    def status(self, error: RequestError) -> int:
        return error.status

    def error(self, error: RequestError) -> bytes:
        return openai_error(error)


def _tools(tools: Any) -> tuple[Mapping[str, Any], ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise BadRequestError(f"tools must be a list, got {type(tools).__name__}")
    for tool in tools:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            shape = '{"type": "function", "function": {"name": ..., "parameters": ...}}'
            raise BadRequestError(f"a tool must look like {shape}, got {str(tool)[:200]}")
    return tuple(tools)


def _max_tokens(limit: Any) -> int | None:
    if limit is None or (isinstance(limit, int) and limit >= 1 and limit is not True):
        return limit
    raise BadRequestError(f"max_tokens must be a positive integer, got {limit!r}")


def _tool_calls(calls: Any) -> tuple[ToolCall, ...]:
    if not isinstance(calls, list | None):
        raise BadRequestError(f"tool_calls must be a list, got {type(calls).__name__}")
    return tuple(_tool_call(c) for c in calls or ())


def _tool_call(call: Any) -> ToolCall:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRequestError(
            f"a tool call needs function.name and function.arguments, got {str(call)[:200]}"
        )
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        raise BadRequestError(f"arguments must be JSON text, got {type(arguments).__name__}")
    return ToolCall(_optional_text(call, "id") or "", function["name"], arguments)


def _optional_text(turn: Mapping[str, Any], key: str) -> str | None:
    value = turn.get(key)
    if value is None or isinstance(value, str):
        return value
    raise BadRequestError(f"{key} must be a string, got {type(value).__name__}")


def _envelope(request: Request, reply: Reply, kind: str) -> dict[str, Any]:
    model = request.body.get("model")
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": kind,
        "created": int(time.time()),
        "model": model or "palestra",
    }


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.message.tool_calls and reply.finish_reason == "stop" else reply.finish_reason


def _message(message: Message) -> dict[str, Any]:
    body: dict[str, Any] = {"role": "assistant", "content": message.content or None}
    if message.tool_calls:
        body["tool_calls"] = [_call(c) for c in message.tool_calls]
    else:
        body["content"] = message.content
    if message.reasoning is not None:
        body["reasoning_content"] = message.reasoning
    return body


def _deltas(message: Message) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if message.reasoning is not None:
        deltas.append({"reasoning_content": message.reasoning})
    if message.content:
        deltas.append({"content": message.content})
    for index, call in enumerate(message.tool_calls):
        opened = _call(ToolCall(call.id, call.name, ""))
        deltas.append({"tool_calls": [{"index": index, **opened}]})
        deltas.append({"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]})
    return deltas


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(reply: Reply) -> dict[str, Any]:
    total = reply.prompt_tokens + reply.completion_tokens
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.completion_tokens,
        "total_tokens": total,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
    }


def _token_fields(request: Request, reply: Reply) -> dict[str, Any]:
    fields: dict[str, Any] = {"logprobs": _logprobs(reply) if request.logprobs else None}
    return fields | {"token_ids": reply.token_ids} if request.token_ids else fields


def _logprobs(reply: Reply) -> dict[str, Any]:
    content = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, logprob in reply.logprobs
    ]
    return {"content": content, "refusal": None}
