"""An engine behind an OpenAI-compatible /v1/completions that takes and gives token ids: ours, or vLLM's.

Start vLLM with `--logprobs-mode processed_logprobs`; its default reports the distribution before temperature
and truncation, which `probe` tells apart. A reply whose ids and log-probabilities do not agree in number, or
that answers another prompt than was sent, is refused: nothing is repaired, because it would be trained on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from palestra.harness_proxy.engines.base import (
    Capability,
    EngineError,
    EngineUnavailableError,
    Generation,
    InvalidRequestError,
    PromptTooLongError,
)
from palestra.harness_proxy.engines.http import HttpClient, HttpError
from palestra.trajectories.model import CaptureLevel, Sampling

_TOO_LONG = ("context_length_exceeded", "maximum context length", "maximum model length")
_PROBE_PROMPTS = ([1], [2], [3], [4])
_EQUAL_NATS = 1e-4


class CompletionsEngine:
    """Samples over HTTP. Implements `Engine`."""

    def __init__(
        self, base_url: str, model: str, *, api_key: str | None = None, timeout_s: float = 600.0
    ) -> None:
        """base_url: ending in /v1, as for an OpenAI client. timeout_s: for one whole reply."""
        self.model = model
        self.policy_version = 0
        """What replies are labelled with where the endpoint reports no versions. Set it after an update."""
        self._base_url = base_url.rstrip("/")
        self._headers = {"content-type": "application/json"}
        self._headers |= {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s
        self._clients: dict[str, HttpClient] = {}
        self._context_tokens: int | None = None
        self._closed = False

    async def probe(self) -> Capability:
        """Sample a few tokens: do ids and log-probabilities come back, and what are the latter of?"""
        context_tokens = await self._context()
        choice = _choice(await self._complete(_PROBE_PROMPTS[0], Sampling(max_tokens=2, seed=0), ""))
        level = _capture_level(choice)
        semantics = "none" if level == "text" else await self._semantics()
        return Capability(self.model, level, semantics, context_tokens)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str = ""
    ) -> Generation:
        """One reply. Raises PromptTooLongError, InvalidRequestError, EngineUnavailableError, and EngineError
        for a reply that cannot be used."""
        prompt = prompt_ids if isinstance(prompt_ids, list) else [int(token) for token in prompt_ids]
        fitted = _fit(prompt, sampling, self._context_tokens or await self._context())
        policy_version = self.policy_version
        try:
            body = await self._complete(prompt, fitted, session)
        except _ContextError as error:
            raise PromptTooLongError(len(prompt), self._context_tokens or 0) from error
        return _generation(body, prompt, fitted, policy_version)

    async def aclose(self) -> None:
        """Close the connections."""
        self._closed = True
        for client in self._clients.values():
            await client.aclose()

    @property
    def _asked(self) -> str:
        """The name of the model in requests for replies."""
        return self.model

    async def _context(self) -> int:
        """The model's context length, asked once."""
        if self._context_tokens is None:
            listed = (await self._request("GET", "/models")).get("data", [])
            lengths = {model.get("id"): model.get("max_model_len") for model in listed}
            if not isinstance(lengths.get(self.model), int):
                raise EngineError(
                    f"{self._base_url}/models names no max_model_len for {self.model!r}, it lists {lengths}: "
                    "give the name of a model that is served there"
                )
            self._context_tokens = lengths[self.model]
        return self._context_tokens

    async def _semantics(self) -> Literal["processed", "raw", "none"]:
        """What log-probabilities are of. With top_k=1 one token is left to sample: 0 nats if processed.

        Raw ones are the model's and do not move with the temperature; anything else is neither.
        """
        cold, warm = [await self._forced(temperature) for temperature in (0.7, 1.0)]
        if all(abs(logprob) < _EQUAL_NATS for logprob in cold + warm):
            return "processed"
        moved = any(abs(a - b) > _EQUAL_NATS for a, b in zip(cold, warm, strict=True))
        return "none" if moved else "raw"

    async def _forced(self, temperature: float) -> list[float]:
        """The log-probability of the one token that top_k=1 leaves, after each of the probe's prompts."""
        sampling = Sampling(temperature=temperature, top_k=1, max_tokens=1, seed=0)
        bodies = await asyncio.gather(*(self._complete(prompt, sampling, "") for prompt in _PROBE_PROMPTS))
        return [float(_choice(body)["logprobs"]["token_logprobs"][0]) for body in bodies]

    async def _complete(self, prompt: list[int], sampling: Sampling, session: str) -> dict[str, Any]:
        body = {
            "model": self._asked,
            "prompt": prompt,
            **sampling_fields(sampling),
            "return_token_ids": True,
        }
        return await self._request("POST", "/completions", body, {"x-session-id": session})

    async def _request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return await self._fetch(self._base_url, method, path, body, headers)

    async def _fetch(
        self, base: str, method: str, path: str, body: object, headers: Mapping[str, str] | None
    ) -> dict[str, Any]:
        status, content = await self._exchange(base, method, path, body, headers)
        return read_answer(status, content, f"{method} {base}{path}")

    async def _exchange(
        self,
        base: str,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        try:
            data = b"" if body is None else orjson.dumps(body)
            return await self._client(base).request(method, path, data, headers)
        except (HttpError, OSError) as error:
            what = f"{method} {base}{path}"
            raise EngineUnavailableError(f"{what} failed: {error!r}. Is the engine running?") from error

    def _client(self, base: str) -> HttpClient:
        if self._closed:
            raise EngineUnavailableError("the engine was closed")
        if base not in self._clients:
            try:
                self._clients[base] = HttpClient(base, self._headers, self._timeout_s)
            except ValueError as error:
                raise EngineUnavailableError(f"cannot ask the engine: {error}") from error
        return self._clients[base]


def _fit(prompt: list[int], sampling: Sampling, context_tokens: int) -> Sampling:
    """Cut max_tokens to what is left of the context: a server refuses the request otherwise."""
    room = context_tokens - len(prompt)
    if room <= 0:
        raise PromptTooLongError(len(prompt), context_tokens)
    return sampling if sampling.max_tokens <= room else replace(sampling, max_tokens=room)


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """`sampling` as vLLM's endpoints name it, with the log-probability of every sampled token."""
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,  # the stop tokens are ours to name
        "logprobs": 0,
    }


class _ContextError(EngineError):
    """The server says that the prompt does not fit."""


def read_answer(status: int, content: bytes, what: str) -> dict[str, Any]:
    """The body of a 200, or the error that the status stands for."""
    if status == 200:
        return _json_object(content, what)
    text = content.decode("utf-8", "replace")
    if status == 429 or status >= 500:
        raise EngineUnavailableError(f"{what} answered {status}: {text[:500]}")
    if status == 400 and any(phrase in text for phrase in _TOO_LONG):
        raise _ContextError(text[:500])
    if status in (400, 422):
        raise InvalidRequestError(f"{what} answered {status}: {text[:500]}")
    raise EngineError(f"{what} answered {status}: {text[:500]}. Check the URL, the model's name and the key.")


def _json_object(content: bytes, what: str) -> dict[str, Any]:
    try:
        body = orjson.loads(content) if content else {}
    except orjson.JSONDecodeError as error:
        raise EngineError(f"{what} answered something that is not JSON: {content[:200]!r}") from error
    if not isinstance(body, dict):
        raise EngineError(f"{what} answered JSON that is not an object: {content[:200]!r}")
    return body


def _choice(body: Mapping[str, Any]) -> dict[str, Any]:
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise EngineError(f"expected one choice in the reply, got {choices!r}")
    choice: dict[str, Any] = choices[0]
    return choice


def _capture_level(choice: Mapping[str, Any]) -> CaptureLevel:
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
    if not logprobs or None in logprobs:
        return "text"
    return "tokens" if len(choice.get("token_ids") or ()) == len(logprobs) else "logprobs"


def _generation(body: Mapping[str, Any], prompt: list[int], sampling: Sampling, version: int) -> Generation:
    """The reply, once everything about it agrees. Raises EngineError when anything does not."""
    choice = _choice(body)
    if choice.get("finish_reason") == "abort":
        raise EngineUnavailableError("the server aborted the reply")
    ids, logprobs, given, finish_reason = _plain(choice) or _validated(choice)
    if not 1 <= len(ids) == len(logprobs) <= sampling.max_tokens:
        raise _unusable(
            f"{len(ids)} ids, {len(logprobs)} log-probabilities, asked {sampling.max_tokens}", choice
        )
    if given is not None and given != prompt:
        raise _unusable("it answers another prompt than was sent", choice)
    versions = tuple((int(at), int(of)) for at, of in body.get("versions") or ((0, version),))
    return Generation(ids, logprobs, finish_reason, versions)


_Parts = tuple[list[int], list[float], list[int] | None, Literal["stop", "length"]]
"""Sampled ids, log-probabilities, ids of the prompt where they are given, and why the reply ends."""


def _plain(choice: Mapping[str, Any]) -> _Parts | None:
    """The parts of a reply in which all is of the right type. None: `_validated` finds out what is not."""
    ids: Any = choice.get("token_ids")
    given: Any = choice.get("prompt_token_ids")
    logprobs = choice.get("logprobs")
    values: Any = logprobs.get("token_logprobs") if type(logprobs) is dict else None
    finish_reason = choice.get("finish_reason")
    if finish_reason not in ("stop", "length") or not (_all(int, ids) and _all(float, values)):
        return None
    return (ids, values, given, finish_reason) if given is None or _all(int, given) else None


def _all(kind: type, values: Any) -> bool:
    return type(values) is list and set(map(type, values)) == {kind}


def _validated(choice: Mapping[str, Any]) -> _Parts:
    """The parts of a reply, converted where nothing is lost. Raises EngineError with what is wrong."""
    try:
        reply = _Reply.model_validate(choice)
    except ValidationError as error:
        first = error.errors()[0]
        raise _unusable(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", choice) from error
    return reply.token_ids, reply.logprobs.token_logprobs, reply.prompt_token_ids, reply.finish_reason


class _Logprobs(BaseModel):
    token_logprobs: list[float]


class _Reply(BaseModel):
    """What a choice must have to be trained on."""

    model_config = ConfigDict(strict=True)

    token_ids: list[int]
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs
    finish_reason: Literal["stop", "length"]


def _unusable(why: str, choice: Mapping[str, Any]) -> EngineError:
    return EngineError(f"the reply cannot be used: {why}; got {orjson.dumps(choice).decode()[:500]}")
