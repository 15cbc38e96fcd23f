"""A small client of the Chat Completions API: one request, one reply, retries where the status asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from palestra.rollouts.errors import RolloutError
from palestra.rollouts.harnesses.base import Endpoint

RETRIES = 8
"""Tries after the first for 429, 5xx and broken connections; waits double from 0.1 s up to 5 s, or as told."""


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

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None

    async def chat(self, endpoint: Endpoint, messages: Sequence[Any], tools: Sequence[Any]) -> ChatReply:
        """One turn. Raises RolloutError at boundary provider when the model stays out of reach."""
        body = orjson.dumps({"model": endpoint.model, "messages": messages, "tools": tools})
        headers = {"authorization": f"Bearer {endpoint.key}", "content-type": "application/json"}
        status, text, answer = await self._post(f"{endpoint.base_url}/chat/completions", body, headers)
        if status != 200:
            raise RolloutError("provider", "chat", f"HTTP {status}: {text[:500].decode('utf-8', 'replace')}")
        call = answer.get("x-palestra-call")
        message = orjson.loads(text)["choices"][0]["message"]
        return ChatReply(message, int(call) if call else None, answer.get("x-palestra-stop"))

    async def aclose(self) -> None:
        """Close the connection pool."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def _post(
        self, url: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes, Mapping[str, str]]:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
            )
        problem = ""
        for attempt in range(RETRIES + 1):
            wait_s = min(0.1 * 2**attempt, 5.0)
            try:
                retry = {"x-stainless-retry-count": str(attempt)} if attempt else {}
                async with self._http.post(url, data=body, headers=headers | retry) as response:
                    text = await response.read()
                    if response.status != 429 and response.status < 500:
                        return response.status, text, response.headers
                    problem = f"HTTP {response.status}: {text[:200].decode('utf-8', 'replace')}"
                    wait_s = min(wait_s, float(response.headers.get("retry-after", wait_s)))
            except aiohttp.ClientError as error:
                problem = f"{type(error).__name__}: {error}"
            await asyncio.sleep(wait_s)
        raise RolloutError("provider", "chat", f"gave up after {RETRIES + 1} tries: {problem}")
