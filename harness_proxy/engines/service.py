"""Any engine as an OpenAI-compatible endpoint that takes and gives token ids, as vLLM's /v1/completions does.

    POST /v1/completions   prompt (token ids, or text where a codec is given), max_tokens, temperature, top_p,
                           top_k, seed, stop_token_ids, logprobs, return_token_ids; header x-session-id
    GET  /v1/models        the model and its context length, as the engine's probe reports them
    GET  /health           200 when the engine samples, 503 when it does not

A plain ASGI app. A caller that hangs up frees its place in the engine. No streaming and no chat: the proxy
has those.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from palestra.harness_proxy.engines.base import (
    Engine,
    EngineError,
    EngineUnavailableError,
    Generation,
    InvalidRequestError,
    PromptTooLongError,
)
from palestra.trajectories.model import Sampling

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_MAX_BODY_BYTES = 64 * 2**20


class TextCodec(Protocol):
    """What turns text into token ids and back; a transformers tokenizer is one."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...


class CompletionRequest(BaseModel):
    """The fields that are understood; others are ignored, as vLLM does."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str = ""
    prompt: list[int] | str
    max_tokens: int = Field(16, ge=1)
    temperature: float = Field(1.0, ge=0.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=-1)
    seed: int | None = None
    stop_token_ids: list[int] | None = None
    logprobs: int | None = Field(None, ge=0)
    return_token_ids: bool | None = None
    stream: bool | None = None
    n: int = 1

    def sampling(self) -> Sampling:
        """The same, in our words."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            max_tokens=self.max_tokens,
            stop_token_ids=tuple(self.stop_token_ids or ()),
            seed=self.seed,
        )


class _Refusal(Exception):
    """An answer other than 200, in the shape of OpenAI's errors."""

    def __init__(self, status: int, kind: str, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": code}}


def completions_app(engine: Engine, codec: TextCodec | None = None) -> App:
    """An ASGI app that serves `engine`. Without a codec prompts are token ids and replies have no text."""
    service = _Service(engine, codec)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            status, body = 200, await service.answer(scope, receive)
        except _Refusal as refusal:
            status, body = refusal.status, refusal.body
        except _HungUp:
            return
        await _send_json(send, status, body)

    return app


class _HungUp(Exception):
    """The caller is gone."""


class _Service:
    def __init__(self, engine: Engine, codec: TextCodec | None) -> None:
        self._engine, self._codec = engine, codec

    async def answer(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        """The body of a 200, or a _Refusal."""
        route = (scope["method"], scope["path"])
        try:
            if route == ("POST", "/v1/completions"):
                return await self._complete(scope, receive)
            if route == ("GET", "/v1/models"):
                return await self._models()
            if route == ("GET", "/health"):
                await self._engine.probe()
                return {}
        except PromptTooLongError as error:
            raise _Refusal(400, "invalid_request_error", str(error), "context_length_exceeded") from error
        except InvalidRequestError as error:
            raise _Refusal(400, "invalid_request_error", str(error)) from error
        except EngineUnavailableError as error:
            raise _Refusal(503, "service_unavailable", str(error)) from error
        except EngineError as error:
            raise _Refusal(500, "internal_error", str(error)) from error
        raise _Refusal(404, "not_found", f"{route[0]} {route[1]} is not served; POST /v1/completions is")

    async def _complete(self, scope: Scope, receive: Receive) -> dict[str, Any]:
        request = _parse(await _read_body(receive))
        prompt = self._prompt_ids(request.prompt)
        session = dict(scope["headers"]).get(b"x-session-id", b"").decode("latin-1")
        reply = await _unless_hung_up(
            self._engine.generate(prompt, request.sampling(), session=session), receive
        )
        return self._completion(request, prompt, reply)

    def _prompt_ids(self, prompt: list[int] | str) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        if self._codec is None:
            raise _Refusal(
                400, "invalid_request_error", "prompt must be a list of token ids: no tokenizer here"
            )
        return list(self._codec.encode(prompt))

    def _completion(self, request: CompletionRequest, prompt: list[int], reply: Generation) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "text": self._codec.decode(reply.token_ids) if self._codec else "",
            "finish_reason": reply.finish_reason,
            "logprobs": None,
        }
        if request.logprobs is not None:
            choice["logprobs"] = {"token_logprobs": reply.logprobs}
        if request.return_token_ids:
            choice |= {"token_ids": reply.token_ids, "prompt_token_ids": prompt}
        tokens = len(prompt), len(reply.token_ids)
        return {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": tokens[0],
                "completion_tokens": tokens[1],
                "total_tokens": sum(tokens),
            },
            "versions": reply.versions,
        }

    async def _models(self) -> dict[str, Any]:
        found = await self._engine.probe()
        model = {
            "id": found.model,
            "object": "model",
            "owned_by": "palestra",
            "max_model_len": found.context_tokens,
        }
        return {"object": "list", "data": [model]}


def _parse(body: bytes) -> CompletionRequest:
    try:
        request = CompletionRequest.model_validate(orjson.loads(body))
    except orjson.JSONDecodeError as error:
        raise _Refusal(400, "invalid_request_error", f"the body is not JSON: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _Refusal(400, "invalid_request_error", f"{where}: {first['msg']}") from error
    if request.stream or request.n != 1:
        raise _Refusal(400, "invalid_request_error", "stream and n above 1 are not supported")
    return request


async def _read_body(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _HungUp
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > _MAX_BODY_BYTES:
            raise _Refusal(413, "invalid_request_error", f"the body is longer than {_MAX_BODY_BYTES} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


async def _unless_hung_up(reply: Awaitable[Generation], receive: Receive) -> Generation:
    """The reply; when the caller hangs up first, the generation is cancelled."""
    sampling, hang_up = asyncio.ensure_future(reply), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((sampling, hang_up), return_when=asyncio.FIRST_COMPLETED)
        if not sampling.done():
            raise _HungUp
        return sampling.result()
    finally:
        sampling.cancel()
        hang_up.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_json(send: Send, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": orjson.dumps(body)})
