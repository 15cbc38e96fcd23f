"""A small client of the Chat Completions API: one request, one reply, retries where the status asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from palestra.rollouts.errors import RolloutError, boundary
from palestra.rollouts.harnesses.base import Endpoint

RETRIES = 8
"""Tries after the first, for the statuses below and for broken connections."""
RETRIED = frozenset({408, 409, 429, 502, 503, 504})
"""The proxy answers 500 where asking again is of no use."""
FIRST_WAIT_S, LONGEST_WAIT_S, LONGEST_TOLD_S = 0.1, 5.0, 60.0
"""Waits double from the first to the longest; Retry-After of up to a minute is obeyed where it is longer."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The assistant's message, as the API spelt it, and what the proxy says of it."""

    message: Mapping[str, Any]
    call: int | None
    """Call.seq at the proxy, to join environment steps to."""
    stopped: str | None
    """Why the proxy ended the session in place of the model, or None."""


class ChatClient:
    """Keeps one connection pool for all rollouts of an event loop."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """`sleep` waits for that many seconds between tries."""
        self._sleep = sleep
        self._http: aiohttp.ClientSession | None = None

    async def chat(self, endpoint: Endpoint, messages: Sequence[Any], tools: Sequence[Any]) -> ChatReply:
        """One turn. Raises RolloutError at boundary provider when the model stays out of reach."""
        body = orjson.dumps({"model": endpoint.model, "messages": messages, "tools": tools})
        headers = {"authorization": f"Bearer {endpoint.key}", "content-type": "application/json"}
        answer = await self._post(f"{endpoint.base_url}/chat/completions", body, headers)
        if answer.status != 200:
            raise RolloutError("provider", "chat", str(answer), final=True)
        with boundary("provider", "chat"):
            call = answer.headers.get("x-palestra-call")
            message = orjson.loads(answer.body)["choices"][0]["message"]
            stopped = answer.headers.get("x-palestra-stop")
            return ChatReply(message, int(call) if call is not None else None, stopped)

    async def aclose(self) -> None:
        """Close the connection pool. Calling it twice is fine."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> _Answer:
        """The first answer that is not a plea to come back later."""
        problem, wait_s = "", 0.0
        for attempt in range(RETRIES + 1):
            await self._sleep(wait_s)
            # The proxy gives a reply that was sampled already again to a caller who says that it missed it.
            retry = {"x-stainless-retry-count": str(attempt)} if attempt else {}
            try:
                answer = await self._once(url, body, {**headers, **retry})
                if answer.status not in RETRIED:
                    return answer
                problem, told_s = str(answer), answer.told_s
            except aiohttp.ClientError as error:
                problem, told_s = f"{type(error).__name__}: {error}", 0.0
            wait_s = max(min(FIRST_WAIT_S * 2**attempt, LONGEST_WAIT_S), told_s)
        raise RolloutError("provider", "chat", f"gave up after {RETRIES + 1} tries: {problem}")

    async def _once(self, url: str, body: bytes, headers: Mapping[str, str]) -> _Answer:
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=None)
            self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        async with self._http.post(url, data=body, headers=headers) as response:
            return _Answer(response.status, response.headers, await response.read())


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def told_s(self) -> float:
        """retry-after-ms or Retry-After in seconds; 0 where there is none, or a date."""
        exact = self.headers.get("retry-after-ms", "")
        told = self.headers.get("retry-after", "")
        seconds = float(exact) / 1000 if exact.isdecimal() else float(told) if _is_number(told) else 0.0
        return min(seconds, LONGEST_TOLD_S)

    def __str__(self) -> str:
        return f"HTTP {self.status}: {self.body[:500].decode('utf-8', 'replace')}"
