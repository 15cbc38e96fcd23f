"""HTTP that does not wait for ever and does not keep what never ends: uvicorn's protocol with two bounds.

uvicorn with httptools bounds neither the time in which the head of a request arrives nor its size, so a few
thousand callers who send a byte now and then would keep their connections and their memory.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 30.0
"""For the head of a request to arrive, from the connection or from the first byte after the last request."""
HEAD_BYTES = 64 * 1024
"""Of one request: its first line and its headers."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection."""

    head_s = HEAD_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._in_head, self._head_bytes = True, 0
        super().connection_made(transport)  # type: ignore[arg-type]
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head and not self._head_bytes:
            self._expect_head()
        self._head_bytes += len(data) if self._in_head else 0
        if self._in_head and self._head_bytes > HEAD_BYTES and self._head_is_too_large(data):
            self._refuse(b"431 Request Header Fields Too Large")
            return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True
        super().on_message_complete()

    def _head_is_too_large(self, data: bytes) -> bool:
        """Whether what came before `data` is head too; else the body that came along is what is large."""
        end = data.find(b"\r\n\r\n")
        return end < 0 or self._head_bytes - len(data) + end > HEAD_BYTES

    def _expect_head(self) -> None:
        self._stop_timer()
        self._deadline = self.loop.call_later(self.head_s, self._is_late)

    def _stop_timer(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _is_late(self) -> None:
        if self._in_head and (self.cycle is None or self.cycle.response_complete):
            self._refuse(b"408 Request Timeout")

    def _refuse(self, status: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status)
            self.transport.close()


def protocol(head_s: float) -> type[Any]:
    """`GuardedProtocol` with another limit."""
    return type("GuardedProtocol", (GuardedProtocol,), {"head_s": head_s})
