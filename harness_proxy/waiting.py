"""A caller who waits for a reply: is it still there, and does its connection stay open?

Replies are sampled whole and sent at once, so a caller hears nothing for as long as the engine works. Where that
takes longer than `keepalive_s`, one that asked for a stream gets the status and then something that its API's
clients ignore, every `keepalive_s`. From then on a failure cannot be told by a status: it is told by the error
frame of the dialect, and the connection is cut, because many clients take a clean end for a whole reply.

A caller who left is noticed within a second. Its call is given up after `abandon_after_s`, unless somebody has
asked the same again meanwhile, as a client does that reconnects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from palestra.harness_proxy.asgi import Receive, Send, has_left, respond

EVENTS = b"text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited, in seconds. None means for ever; for `keepalive_s`, that nothing is sent."""

    keepalive_s: float | None = 15.0
    """Between two signs of life while the engine works. Idle timeouts of SDKs and middleboxes begin at 30 s."""
    abandon_after_s: float | None = 5.0
    """From when its caller left to when a call is given up."""
    body_s: float | None = 60.0
    """For a request's body to arrive whole."""
    look_s: float = 0.5
    """Between two looks at a caller."""


class Waiting:
    """One caller. Use it as a context around the work that it waits for."""

    def __init__(self, receive: Receive, send: Send, patience: Patience) -> None:
        self.began = False
        """A status was sent already."""
        self.abandoned = False
        """The caller left for good: the task that worked for it was cancelled, and owes nobody an answer."""
        self._receive, self._send, self._patience = receive, send, patience
        self._keepalive = b""
        self._is_wanted: Callable[[], bool] = _nobody
        self._silent_s = self._gone_s = 0.0
        self._beating: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(self._patience.look_s, self._look)
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()

    def expect(self, keepalive: bytes, is_wanted: Callable[[], bool]) -> None:
        """What keeps the connection alive, empty for a caller who did not ask for a stream; and whether others
        wait for the same reply."""
        self._keepalive, self._is_wanted = keepalive, is_wanted

    def has_left(self) -> bool:
        """Whether the caller is known to have gone."""
        return has_left(self._receive)

    async def answer(self, status: int, body: bytes, headers: Mapping[bytes, bytes]) -> None:
        """Send the whole reply; where it has begun, what is left of it."""
        self._timer.cancel()
        if self._beating is not None:
            await self._beating
        if self.began:
            await self._send({"type": "http.response.body", "body": body})
        else:
            await respond(self._send, status, body, headers)

    async def break_off(self, frame: bytes) -> None:
        """Tell the failure of a reply that has begun. The caller of this must end without ending the reply."""
        self._timer.cancel()
        if self._beating is not None:
            await self._beating
        await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._patience.look_s, self._look)
        self._silent_s += self._patience.look_s
        if self.has_left():
            self._note_gone()
        elif self._keepalive and self._is_due():
            self._silent_s = 0.0
            self._beating = asyncio.create_task(self._beat(self._beating))

    def _note_gone(self) -> None:
        limit_s = self._patience.abandon_after_s
        self._gone_s = 0.0 if self._is_wanted() else self._gone_s + self._patience.look_s
        if limit_s is not None and self._gone_s > limit_s and not self.abandoned:
            self.abandoned = True
            self._task.cancel()

    def _is_due(self) -> bool:
        return self._patience.keepalive_s is not None and self._silent_s >= self._patience.keepalive_s

    async def _beat(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        if not self.began:
            self.began = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", EVENTS)]}
            )
        await self._send({"type": "http.response.body", "body": self._keepalive, "more_body": True})


def _nobody() -> bool:
    return False
