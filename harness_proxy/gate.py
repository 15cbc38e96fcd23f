"""Who is inside: calls are let in or not, and the last one out is noticed."""

from __future__ import annotations

import asyncio

from palestra.harness_proxy.errors import PausedError


class Gate:
    """Lets calls in or not, and knows when the last one is out. `with gate:` is for the time of one call."""

    def __init__(self, retry_after_s: float) -> None:
        self.paused = False
        self._retry_after_s = retry_after_s
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def __enter__(self) -> None:
        self._inside += 1
        self._empty.clear()

    def __exit__(self, *exc: object) -> None:
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
