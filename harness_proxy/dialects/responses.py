"""OpenAI Responses: POST /v1/responses, streamed or not, and /v1/responses/input_tokens.

The proxy keeps no responses: callers send the whole input (previous_response_id, conversation and background
are refused). Tools of a namespace are offered as <namespace>__<name> and custom tools as functions with one
string, `input`; both are answered in their own form. Tools that only OpenAI's servers can run (web_search and
others) are not offered. `return_token_ids: true` adds prompt_token_ids and token_ids to the response that ended.
encrypted_content of the reasoning item carries the reply id.

Source of the shapes: the OpenAI API reference and what real clients were seen to send and accept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from palestra.harness_proxy.dialects import shared
from palestra.harness_proxy.dialects.base import Reply, Request
from palestra.harness_proxy.dialects.responses_input import grouped, read_items, reply_id_of
from palestra.harness_proxy.dialects.responses_output import Item, item_events, output_items
from palestra.harness_proxy.dialects.responses_tools import declarations
from palestra.harness_proxy.errors import BadRequestError, RequestError
from palestra.harness_proxy.media import Attachments
from palestra.trajectories.model import Message

CALL_PATH = "/v1/responses"
COUNT_PATH = "/v1/responses/input_tokens"

_SAMPLING_KEYS = (
    ["temperature", "top_p", "max_output_tokens", "top_logprobs", "reasoning", "text"]
    + ["tool_choice", "parallel_tool_calls", "truncation"]
)  # fmt: skip
_NOT_KEPT = ("previous_response_id", "conversation", "background")


class ResponsesDialect:
    """See the module. Stateless."""

    name = "responses"
    prefix = CALL_PATH

    def serves(self, path: str) -> bool:
        return path == CALL_PATH

    def counts(self, path: str) -> bool:
        return path == COUNT_PATH

    def side_reply(self, method: str, path: str, model_name: str) -> bytes | None:
        return None

    def decode(self, body: Any, target: str = "") -> Request:
        fields = shared.require(dict, body, "the body")
        for key in _NOT_KEPT:
            if fields.get(key):
                raise BadRequestError(f"{key} is not served, no response is kept here: send the whole input")
        items = _items(fields)
        declared, left_out = declarations(fields)
        include = shared.optional(list, fields.get("include"), "include") or []
        return Request(
            body=fields,
            turns=grouped(items),
            tools=tuple(d.definition for d in declared),
            requested={k: fields[k] for k in _SAMPLING_KEYS if k in fields},
            unapplied=(*_unapplied(fields), *left_out),
            max_tokens=shared.token_limit(fields.get("max_output_tokens"), "max_output_tokens"),
            stream=fields.get("stream") is True,
            logprobs="message.output_text.logprobs" in include,
            token_ids=fields.get("return_token_ids") is True,
        )

    def read(self, turn: Any, attachments: Attachments | None = None) -> Sequence[Message]:
        return read_items(turn, attachments)

    def reply_id(self, turn: Any) -> str | None:
        return reply_id_of(turn)

    def encode(self, request: Request, reply: Reply) -> bytes:
        return orjson.dumps(_ended(request, reply, output_items(request, reply)))

    def stream(self, request: Request, reply: Reply) -> bytes:
        numbered = enumerate(_events(request, reply))
        return b"".join(shared.event(e["type"], e | {"sequence_number": n}) for n, e in numbered)

    def encode_count(self, tokens: int) -> bytes:
        return orjson.dumps({"object": "response.input_tokens", "input_tokens": tokens})

    def status(self, error: RequestError) -> int:
        return error.status

    def error(self, error: RequestError) -> bytes:
        return shared.openai_error(error)


# Requests.


def _items(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = fields.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    read = [shared.require(dict, item, "an item of input") for item in shared.require(list, items, "input")]
    instructions = shared.optional(str, fields.get("instructions"), "instructions")
    if instructions:
        read.insert(0, {"role": "system", "content": instructions})
    if not read:
        raise BadRequestError("input must have at least one item")
    return read


def _unapplied(fields: Mapping[str, Any]) -> Iterator[str]:
    if fields.get("tool_choice", "auto") not in (None, "auto"):
        yield "tool_choice"
    text = shared.optional(dict, fields.get("text"), "text") or {}
    if (text.get("format") or {"type": "text"}) != {"type": "text"}:
        yield "text.format"


# Replies.


def _envelope(request: Request, reply: Reply) -> dict[str, Any]:
    """The response before it has any output."""
    body = request.body
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "model": body.get("model") or "palestra",
        "output": [],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "temperature": body.get("temperature"),
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p"),
        "max_output_tokens": body.get("max_output_tokens"),
        "previous_response_id": None,
        "store": False,
        "usage": None,
    }


def _ended(request: Request, reply: Reply, items: list[Item]) -> dict[str, Any]:
    cut = reply.finish_reason == "length"
    return _envelope(request, reply) | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": [item.whole for item in items],
        "usage": _usage(reply),
        **shared.token_fields(request, reply),
    }


def _events(request: Request, reply: Reply) -> Iterator[dict[str, Any]]:
    items = output_items(request, reply)
    begun = _envelope(request, reply)
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(items):
        yield from item_events(item, index)
    ended = _ended(request, reply, items)
    yield {"type": f"response.{ended['status']}", "response": ended}


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reply.reasoning_tokens},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
