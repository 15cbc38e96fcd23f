"""Who is inside: calls are let in or not, and the last one out is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from palestra.harness_proxy.errors import PausedError


class Gate:
    """Lets calls in or not, and knows when the last one is out."""

    def __init__(self, retry_after_s: float) -> None:
        self.paused = False
        self._retry_after_s = retry_after_s
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @contextmanager
    def enter(self) -> Iterator[None]:
        """For the time of one call."""
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    def check(self) -> None:
        """Raises PausedError while the gate is closed."""
        if self.paused:
            raise PausedError("weights are being updated, ask again", self._retry_after_s)

    async def drain(self) -> None:
        """Wait until nobody is inside."""
        await self._empty.wait()
