"""One HTTP request and its response, as ASGI's `receive` and `send`."""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Iterable
from typing import Protocol

from palestra.harness_proxy.asgi import App, Event, Scope

STATUS_LINES = {s.value: b"HTTP/1.1 %d %b\r\n" % (s.value, s.phrase.encode()) for s in http.HTTPStatus}
_NO_BODY = (204, 304)
_log = logging.getLogger(__name__)


class Wire(Protocol):
    """The connection, as an exchange sees it."""

    def read_on(self) -> None:
        """More of the request may come."""

    def write(self, data: bytes) -> None:
        """Send."""

    async def drain(self) -> None:
        """Wait where the caller does not read."""

    def answered(self, *, keep_alive: bool) -> None:
        """The response was written whole."""

    def close(self) -> None:
        """Hang up, when what was written has left."""


class Exchange:
    """A request whose body may still be arriving."""

    def __init__(self, wire: Wire, scope: Scope, *, keep_alive: bool, waits_for_100: bool) -> None:
        self.began = self.ended = False
        """Of the response: something, and everything was written."""
        self._wire, self._scope = wire, scope
        self._keep_alive, self._waits_for_100 = keep_alive, waits_for_100
        self._body, self._is_whole = bytearray(), False
        self._news = asyncio.Event()
        self._gone = False
        self._head = b""
        """Of the response, without the field that tells its length, until it is written."""
        self._left: int | None = None
        """Bytes of the response that were announced and not written."""
        self._has_body, self._chunked = True, False

    # What the connection calls.

    async def run(self, app: App) -> None:
        """Answer. A response that does not come to its end is cut off."""
        try:
            await app(self._scope, self.receive, self.send)
            if not (self._head or self.began or self._gone):
                raise RuntimeError("the application answered nothing")
        except Exception:
            _log.exception("%s %s failed", self._scope["method"], self._scope["path"])
            if not (self.began or self._gone):
                self._head, self._keep_alive = b"", False
                await self.send({"type": "http.response.start", "status": 500})
                await self.send({"type": "http.response.body"})
        finally:
            if not (self.ended or self._gone):
                self._wire.close()

    def take(self, data: bytes) -> int:
        """More of the body came; returns how much of it was not read yet. What comes after the answer is dropped."""
        if not self.ended:
            self._body += data
            self._news.set()
        return len(self._body)

    def complete(self) -> None:
        """The whole request came."""
        self._is_whole = True
        self._news.set()

    def leave(self) -> None:
        """The caller hung up."""
        self._gone = True
        self._news.set()

    # What the application calls.

    async def receive(self) -> Event:
        """What comes next of the body, or that the caller left."""
        if self._waits_for_100:
            self._waits_for_100 = False
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not (self._gone or self.ended):
            self._wire.read_on()
            await self._news.wait()
            self._news.clear()
        if self._gone or self.ended:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": not self._is_whole}

    async def send(self, event: Event) -> None:
        """Begin the response, or go on with it. Raises RuntimeError for what would not be HTTP."""
        if self._gone:
            return
        if event["type"] == "http.response.start":
            self._begin(event["status"], event.get("headers", ()))
            asyncio.get_running_loop().call_soon(self._flush)
            return
        more = event.get("more_body", False)
        self._wire.write(self._framed(event.get("body", b""), more))
        if more:
            await self._wire.drain()
        else:
            self.ended = True
            self._news.set()
            self._wire.answered(keep_alive=self._keep_alive)

    def _begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if self._head or self.began:
            raise RuntimeError("a response begins once")
        lines = [STATUS_LINES[status]]
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
            if name == b"content-length":
                self._left = int(value)
        self._waits_for_100 = False
        self._head = b"".join(lines)
        if self._head.count(b"\n") != len(lines) or self._head.count(b"\r") != len(lines):
            raise RuntimeError(f"a header has a line break: {headers!r}")
        self._has_body = self._scope["method"] != "HEAD" and status not in _NO_BODY

    def _flush(self) -> None:
        """Send the head alone, where no body came right behind it."""
        if self._head and not self._gone:
            self._wire.write(self._framed(b"", True))

    def _framed(self, body: bytes, more: bool) -> bytes:
        """`body` as it is sent, with the head where that was not sent yet."""
        head = self._take_head(len(body), more) if self._head else b""
        if not self._has_body:
            return head
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return head + chunk + (b"" if more else b"0\r\n\r\n")
        if self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the response is not as long as its content-length says")
        return head + body

    def _take_head(self, size: int, more: bool) -> bytes:
        head, self._head, self.began = self._head, b"", True
        if self._left is None and self._has_body:
            if not more:
                head += b"content-length: %d\r\n" % size
            elif self._scope["http_version"] == "1.1":
                head, self._chunked = head + b"transfer-encoding: chunked\r\n", True
            else:
                self._keep_alive = False
        return head + (b"\r\n" if self._keep_alive else b"connection: close\r\n\r\n")
