"""Admission by free memory: requests wait outside while a server's KV cache is nearly full.

A vLLM whose cache is full preempts sequences and computes them again later; a rollout that waits costs nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from palestra.harness_proxy.engines.base import EngineError

NAMES = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""What the gauge is called, in newer and older versions; 1 is full."""


def kv_usage(metrics: str) -> float:
    """Share of the KV cache that is in use, of the fullest engine, from what /metrics says. Raises EngineError."""
    rows = [line for line in metrics.splitlines() if line.startswith(NAMES)]
    if not rows:
        raise EngineError(
            f"the server's /metrics names no {NAMES[0]}: it is no vLLM, or runs with --disable-log-stats; "
            "max_kv_usage = 1 asks for none"
        )
    return max(float(line.rpartition(" ")[2]) for line in rows)


class Admission:
    """Lets requests in, first come first served, while `usage` is below `limit`; one is always let in."""

    def __init__(
        self,
        usage: Callable[[], Awaitable[float]],
        limit: float,
        *,
        every_s: float = 0.25,
        at_once: int = 16,
    ) -> None:
        """`usage` is asked after `every_s` seconds or `at_once` requests. A limit of 1 or above asks for nothing."""
        self._usage, self._limit = usage, limit
        self._every_s, self._at_once = every_s, at_once
        self._gate = asyncio.Lock()
        self._inside = self._unasked = 0
        self._known, self._asked_s = 0.0, -float("inf")

    @asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """Waits until there is room; inside, the request counts. Raises what `usage` raises."""
        async with self._gate:
            while self._limit < 1 and self._inside and await self._current() >= self._limit:
                await asyncio.sleep(self._every_s)
            self._inside += 1
            self._unasked += 1
        try:
            yield
        finally:
            self._inside -= 1

    async def _current(self) -> float:
        if self._unasked >= self._at_once or time.monotonic() - self._asked_s >= self._every_s:
            self._known, self._asked_s, self._unasked = await self._usage(), time.monotonic(), 0
        return self._known
