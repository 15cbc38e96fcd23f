"""A hosted model behind an OpenAI-compatible /v1/chat/completions, of which only text is known.

Messages go out, a message comes back: no token ids, so no training. For evaluation and for collecting
demonstrations. Requests that the server had no time for (408, 429, 5xx, a lost connection) are sent again, after
as long as its Retry-After says; what it refuses for good becomes the error that the harness's SDK acts on.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
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
from palestra.harness_proxy.media import URL_MIME, Attachments
from palestra.trajectories.chat import chat_message
from palestra.trajectories.model import FinishReason, Media, Message, ParseStatus, Sampling, ToolCall

_TOO_LONG = ("context_length_exceeded", "maximum context length", "prompt is too long")
_AGAIN = (408, 409, 429)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0
MaxTokensKey = Literal["max_tokens", "max_completion_tokens"]


@dataclass(frozen=True, slots=True)
class TextReply:
    """One reply of which only the text is known; a tool call that does not parse stands in the content. Token
    counts are the server's, 0 where it gave none."""

    message: Message
    finish_reason: FinishReason
    parse_status: ParseStatus
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class HostedEngine:
    """A chat endpoint; an `Engine` without `generate`. Of the session's sampling, defaults are not sent."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        retries: int = 4,
        first_wait_s: float = _FIRST_WAIT_S,
        max_tokens_key: MaxTokensKey = "max_tokens",
        context_tokens: int = 2**31 - 1,
    ) -> None:
        """base_url: ending in /v1, as for an OpenAI client. timeout_s: for one whole reply. context_tokens: of the
        model, where a session's budget should end before the server refuses."""
        self.model = model
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._headers = {"content-type": "application/json"}
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._retries, self._first_wait_s = retries, first_wait_s
        self._max_tokens_key, self._context_tokens = max_tokens_key, context_tokens
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def probe(self) -> Capability:
        """Text is all that such a server is taken to give; nothing is sent, since every request may cost."""
        return Capability(self.model, "text", "none", self._context_tokens)

    async def chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
        attachments: Attachments,
    ) -> TextReply:
        """The server's reply to `messages`.

        Raises PromptTooLongError, InvalidRequestError, EngineUnavailableError where it stays unavailable, and
        EngineError for a reply that cannot be read or a key that is not taken.
        """
        body = {
            "model": self.model,
            "messages": [chat_message(m, lambda media: _image_part(media, attachments)) for m in messages],
            **({"tools": list(tools)} if tools else {}),
            **_sampling(sampling, self._max_tokens_key),
        }
        data = orjson.dumps(body)
        for attempt in range(self._retries + 1):
            try:
                return await self._ask(data)
            except _TryAgain as error:
                if attempt == self._retries:
                    raise EngineUnavailableError(str(error)) from error
                await asyncio.sleep(error.wait_s or min(self._first_wait_s * 2**attempt, _LONGEST_WAIT_S))
        raise AssertionError("the loop returns or raises")

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str = ""
    ) -> Generation:
        """Raises InvalidRequestError: such a model takes no token ids."""
        raise InvalidRequestError(f"{self.model} at {self._url} takes messages, not token ids")

    async def aclose(self) -> None:
        """Close the connections."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _ask(self, data: bytes) -> TextReply:
        try:
            async with self._client().post(self._url, data=data, headers=self._headers) as response:
                status, content = response.status, await response.read()
                wait_s = _seconds(response.headers.get("retry-after"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _TryAgain(f"POST {self._url} failed: {error!r}", None) from error
        if status != 200:
            raise _refusal(status, content.decode("utf-8", "replace")[:500], self._url, wait_s)
        return _reply(content)

    def _client(self) -> aiohttp.ClientSession:
        if self._closed:
            raise EngineUnavailableError("the engine was closed")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)  # concurrency is the caller's to bound
            self._session = aiohttp.ClientSession(timeout=self._timeout, connector=connector)
        return self._session


class _TryAgain(Exception):
    def __init__(self, message: str, wait_s: float | None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


def _refusal(status: int, text: str, url: str, wait_s: float | None) -> Exception:
    what = f"{url} answered {status}: {text}"
    if status in _AGAIN or status >= 500:
        return _TryAgain(what, wait_s)
    if status in (400, 413) and any(phrase in text for phrase in _TOO_LONG):
        return PromptTooLongError(*_sizes(text))
    if status in (400, 413, 422):
        return InvalidRequestError(what)
    return EngineError(f"{what}. Check the URL, the model's name and the key.")


def _sizes(text: str) -> tuple[int, int]:
    """(prompt tokens, limit) that the server's words name; one over a limit of 0 where they name none."""
    numbers = sorted(int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*(?= tokens)", text))
    return (numbers[-1], numbers[0]) if len(numbers) > 1 else (1, 0)


def _seconds(header: str | None) -> float | None:
    """Retry-After in seconds, bounded; None where it is missing or a date."""
    try:
        return min(max(float(header or ""), 0.0), _LONGEST_WAIT_S)
    except ValueError:
        return None


def _sampling(sampling: Sampling, max_tokens_key: MaxTokensKey) -> dict[str, Any]:
    neutral = Sampling()
    sent: dict[str, Any] = {max_tokens_key: sampling.max_tokens}
    for name in ("temperature", "top_p", "top_k", "seed"):
        if getattr(sampling, name) != getattr(neutral, name):
            sent[name] = getattr(sampling, name)
    return sent


def _image_part(media: Media, attachments: Attachments) -> dict[str, Any]:
    data = attachments.get(media.sha256)
    inline = f"data:{media.mime};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": data.decode() if media.mime == URL_MIME else inline}}


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Function(_Record):
    name: str
    arguments: str = "{}"


class _Call(_Record):
    function: _Function


class _Message(_Record):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(_Record):
    message: _Message
    finish_reason: str | None = None


class _Cached(_Record):
    cached_tokens: int | None = None


class _Reasoning(_Record):
    reasoning_tokens: int | None = None


class _Usage(_Record):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Reasoning | None = None


class _Completion(_Record):
    choices: list[_Choice]
    usage: _Usage | None = None


def _reply(content: bytes) -> TextReply:
    try:
        completion = _Completion.model_validate_json(content)
        choice = completion.choices[0]
    except (ValidationError, IndexError) as error:
        raise EngineError(f"the reply cannot be read: {error}; got {content[:200]!r}") from error
    said, usage = choice.message, completion.usage or _Usage()
    made = [ToolCall("", c.function.name, c.function.arguments) for c in said.tool_calls or ()]
    calls = tuple(c for c in made if _is_object(c.arguments))
    broken = [f"{c.name}({c.arguments})" for c in made if not _is_object(c.arguments)]
    text = "\n".join(filter(None, [said.content, *broken]))
    return TextReply(
        Message("assistant", text, said.reasoning_content or said.reasoning or None, calls),
        "length" if choice.finish_reason == "length" else "stop",
        "malformed" if broken else "ok" if calls else "text",
        usage.prompt_tokens,
        usage.completion_tokens,
        (usage.prompt_tokens_details or _Cached()).cached_tokens or 0,
        (usage.completion_tokens_details or _Reasoning()).reasoning_tokens or 0,
    )


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False
