"""Gemini: POST /v1beta/models/<model>:generateContent, :streamGenerateContent and :countTokens.

Any API version and the Vertex spelling of the path are served, keys may be written in camelCase or
snake_case. A stream is server-sent events with ?alt=sse and a JSON array without, as at Google. Thoughts are
sent to callers that ask for them (thinkingConfig.includeThoughts). The thoughtSignature of the first function
call carries the reply id and the ids of all calls, because clients drop the ids themselves. `return_token_ids:
true` in the body adds prompt_token_ids and token_ids to the last response.

Source of the shapes: the Gemini API reference and what real clients were seen to send and accept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from palestra.harness_proxy.dialects import shared
from palestra.harness_proxy.dialects.base import Reply, Request
from palestra.harness_proxy.dialects.gemini_contents import field, read_content, read_system
from palestra.harness_proxy.errors import BadRequestError, ContextLengthError, RequestError
from palestra.harness_proxy.media import Attachments
from palestra.trajectories.model import Message

_CALL = re.compile(r"/v1(?:alpha|beta|beta1)?/(?:.+/)?(?:models|tunedModels)/(.+):(\w+)")
_LIST = re.compile(r"/v1(?:alpha|beta|beta1)/models(/[^:]+|)")
_METHODS = ("generateContent", "streamGenerateContent")

_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    413: "INVALID_ARGUMENT",
    426: "FAILED_PRECONDITION",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


class GeminiDialect:
    """See the module. Stateless."""

    name = "gemini"
    prefix = "/v1beta"

    def serves(self, path: str) -> bool:
        return _method(path) in _METHODS

    def counts(self, path: str) -> bool:
        return _method(path) == "countTokens"

    def side_reply(self, method: str, path: str, model_name: str) -> bytes | None:
        asked = _LIST.fullmatch(path)
        if method not in ("GET", "HEAD") or asked is None:
            return None
        return shared.models(f"/v1/models{asked[1]}", model_name)

    def decode(self, body: Any, target: str = "") -> Request:
        fields = shared.require(dict, body, "the body")
        if _method(target.partition("?")[0]) == "countTokens":
            wrapped = field(fields, "generateContentRequest")
            fields = shared.optional(dict, wrapped, "generateContentRequest") or fields
        contents = shared.require(list, field(fields, "contents"), "contents")
        if not contents:
            raise BadRequestError("contents must have at least one content")
        config = shared.optional(dict, field(fields, "generationConfig"), "generationConfig") or {}
        tools, left_out = _tools(shared.optional(list, fields.get("tools"), "tools") or [])
        return Request(
            body=fields,
            turns=[*read_system(field(fields, "systemInstruction")), *contents],
            tools=tools,
            requested=config,
            unapplied=(*_unapplied(fields, config), *left_out),
            max_tokens=shared.token_limit(field(config, "maxOutputTokens"), "maxOutputTokens"),
            stream=":streamGenerateContent?" in target and "alt=sse" in target,
            logprobs=field(config, "responseLogprobs") is True,
            token_ids=fields.get("return_token_ids") is True,
            target=target,
        )

    def read(self, turn: Any, attachments: Attachments | None = None) -> Sequence[Message]:
        return read_content(turn, attachments)

    def reply_id(self, turn: Any) -> str | None:
        for part in turn.get("parts") or ():
            words = shared.unmark(field(part, "thoughtSignature"))
            if words:
                return words[0]
        return None

    def encode(self, request: Request, reply: Reply) -> bytes:
        whole = _response(request, reply, _parts(request, reply), last=True)
        streamed = ":streamGenerateContent" in request.target
        return orjson.dumps([whole] if streamed else whole)

    def stream(self, request: Request, reply: Reply) -> bytes:
        *first, last = _parts(request, reply)
        chunks = [_response(request, reply, [part], last=False) for part in first]
        chunks.append(_response(request, reply, [last], last=True))
        return b"".join(b"data: %b\r\n\r\n" % orjson.dumps(chunk) for chunk in chunks)

    def encode_count(self, tokens: int) -> bytes:
        return orjson.dumps({"totalTokens": tokens})

    def status(self, error: RequestError) -> int:
        return error.status

    def error(self, error: RequestError) -> bytes:
        body: dict[str, Any] = {"code": error.status, "message": _message(error)}
        body["status"] = _STATUS_NAMES[error.status]
        if error.retry_after_s is not None:
            delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo"}
            body["details"] = [delay | {"retryDelay": f"{error.retry_after_s:g}s"}]
        return orjson.dumps({"error": body})


# Requests.


def _method(path: str) -> str | None:
    found = _CALL.fullmatch(path)
    return found[2] if found is not None else None


def _tools(tools: list[Any]) -> tuple[tuple[Mapping[str, Any], ...], list[str]]:
    """(definitions, names of those that only Google's servers can run)."""
    definitions: list[Mapping[str, Any]] = []
    left_out: list[str] = []
    for tool in tools:
        fields = shared.require(dict, tool, "a tool")
        declared = field(fields, "functionDeclarations")
        definitions += map(_definition, shared.optional(list, declared, "functionDeclarations") or ())
        left_out += [
            f"tool {k[:80]}" for k in fields if k not in ("functionDeclarations", "function_declarations")
        ]
    return tuple(definitions), left_out


def _definition(declaration: Any) -> Mapping[str, Any]:
    fields = shared.require(dict, declaration, "a function declaration")
    schema = field(fields, "parametersJsonSchema")
    parameters = _json_schema(fields.get("parameters")) if schema is None else schema
    return shared.function_tool(fields.get("name"), fields.get("description"), parameters)


def _json_schema(schema: Any) -> Any:
    """Google's schema as JSON Schema, whose type names are in lower case."""
    if isinstance(schema, list):
        return [_json_schema(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        k: v.lower() if k == "type" and isinstance(v, str) else _json_schema(v) for k, v in schema.items()
    }


def _unapplied(fields: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[str]:
    tools = shared.optional(dict, field(fields, "toolConfig"), "toolConfig") or {}
    calling = shared.optional(dict, field(tools, "functionCallingConfig"), "functionCallingConfig") or {}
    if str(calling.get("mode", "AUTO")).upper() not in ("AUTO", "MODE_UNSPECIFIED"):
        yield "toolConfig.functionCallingConfig"
    for name in ("stopSequences", "responseSchema", "responseJsonSchema"):
        if field(config, name):
            yield name
    if field(config, "candidateCount") not in (None, 1):
        raise BadRequestError("candidateCount must be 1: ask again for another sample")


# Replies.


def _parts(request: Request, reply: Reply) -> list[dict[str, Any]]:
    message, parts = reply.message, []
    if message.reasoning is not None and _wants_thoughts(request):
        parts.append({"text": message.reasoning, "thought": True})
    if message.content or not message.tool_calls:
        parts.append({"text": message.content})
    calls: list[dict[str, Any]] = [
        {
            "functionCall": {
                "id": c.id,
                "name": c.name,
                "args": orjson.Fragment(shared.strict_json(c.arguments)),
            }
        }
        for c in message.tool_calls
    ]
    if calls:
        calls[0]["thoughtSignature"] = shared.mark(reply.id, *(c.id for c in message.tool_calls))
    return parts + calls


def _wants_thoughts(request: Request) -> bool:
    thinking = field(request.requested, "thinkingConfig")
    return isinstance(thinking, dict) and field(thinking, "includeThoughts") is True


def _response(request: Request, reply: Reply, parts: list[dict[str, Any]], *, last: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    called = _CALL.fullmatch(request.target.partition("?")[0])
    response: dict[str, Any] = {"candidates": [candidate], "responseId": reply.id}
    response["modelVersion"] = called[1] if called is not None else "palestra"
    if last:
        candidate["finishReason"] = "MAX_TOKENS" if reply.finish_reason == "length" else "STOP"
        response["usageMetadata"] = _usage(reply)
        response |= shared.token_fields(request, reply)
        if request.logprobs:
            candidate["logprobsResult"] = _logprobs(reply)
    return response


def _usage(reply: Reply) -> dict[str, int]:
    """Thoughts are not counted among the candidate's tokens, in this API."""
    return {
        "promptTokenCount": reply.prompt_tokens,
        "cachedContentTokenCount": reply.cached_tokens,
        "candidatesTokenCount": reply.completion_tokens - reply.reasoning_tokens,
        "thoughtsTokenCount": reply.reasoning_tokens,
        "totalTokenCount": reply.prompt_tokens + reply.completion_tokens,
    }


def _logprobs(reply: Reply) -> dict[str, Any]:
    chosen = [{"token": text, "logProbability": logprob} for text, logprob in reply.logprobs]
    return {"chosenCandidates": chosen}


def _message(error: RequestError) -> str:
    if not isinstance(error, ContextLengthError):
        return str(error)
    counted = f"The input token count ({error.prompt_tokens}) exceeds the maximum number of tokens allowed"
    return f"{counted} ({error.limit})."
