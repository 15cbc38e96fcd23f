"""HTTP/1.1 from callers to an ASGI application: `httptools` parses, one write answers.

For calls that come thousands of times a second: in a general server, several writes and timers for each of them cost
more CPU than much of what is served. Here a response that is sent whole leaves in one write and a request starts no
timer; the listener looks at all connections now and then. What callers can make the server keep is bounded: the time
for the head of a request, its size, bodies that nobody reads yet. No TLS, no upgrades, no trailers.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import Any
from urllib.parse import unquote

import httptools

from palestra.harness_proxy.asgi import App, Scope
from palestra.harness_proxy.exchange import STATUS_LINES, Exchange

HEAD_S = 30.0
"""For the head of a request to arrive, from the connection or from the first byte after the last request."""
KEEP_ALIVE_S = 600.0
"""Between two requests on a connection."""
HEAD_BYTES = 64 * 1024
"""Of one request: its first line and its headers."""
_BODY_BYTES = 64 * 1024
"""Of a body, before the application reads it."""
_log = logging.getLogger(__name__)


class Connections:
    """Those of one server, and the tasks that answer them."""

    def __init__(self, app: App, limit: int) -> None:
        """`limit`: further ones are answered with 503."""
        self.app, self.limit = app, limit
        self.open: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    def end_late(self) -> None:
        """Refuse callers who did not say in time what they want."""
        now_s = asyncio.get_running_loop().time()
        for connection in [c for c in self.open if c.deadline_s < now_s]:
            connection.end_late()


class Connection(asyncio.Protocol):
    """One caller, whose requests are answered one after the other."""

    def __init__(self, connections: Connections) -> None:
        self.deadline_s = math.inf
        """Until when something has to come, on the loop's clock."""
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._now: Exchange | None = None
        """The exchange that is being answered, then those whose turn comes later."""
        self._next: deque[Exchange] = deque()
        self._arriving: Exchange | None = None
        self._in_head, self._head_bytes = True, 0
        self._is_idle = self._is_paused = self._is_last = False
        self._writable = asyncio.Event()
        self._writable.set()

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self._base = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "scheme": "http",
            "root_path": "",
            "client": _address(transport.get_extra_info("peername")),
            "server": _address(transport.get_extra_info("sockname")),
        }
        self._connections.open.add(self)
        self.deadline_s = self._loop.time() + HEAD_S
        if len(self._connections.open) > self._connections.limit:
            self._refuse(503)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.open.discard(self)
        self._next.clear()
        self._writable.set()
        if self._now is not None:
            self._now.leave()

    def data_received(self, data: bytes) -> None:
        if self._is_last:
            return
        if self._in_head and self._head_is_too_large(data):
            return self._refuse(431)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._is_last = True
        except httptools.HttpParserError as error:
            _log.info("a request is not HTTP: %r", error)
            self._refuse(400)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes, self.deadline_s = False, 0, math.inf
        scope = self._scope()
        lasts = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        self._arriving = Exchange(
            self,
            scope,
            keep_alive=lasts and scope["http_version"] != "1.0",
            waits_for_100=(b"expect", b"100-continue") in self._headers,
        )
        self._next.append(self._arriving)
        if self._now is None:
            self._go_on()
        else:
            self._pause()

    def on_body(self, data: bytes) -> None:
        if self._arriving is not None and self._arriving.take(data) > _BODY_BYTES:
            self._pause()

    def on_message_complete(self) -> None:
        self._in_head = True
        if self._arriving is not None:
            self._arriving.complete()
            self._arriving = None

    # What an exchange calls.

    def read_on(self) -> None:
        """Take more from the caller, unless a request has come that is not answered yet."""
        if self._is_paused and not self._next and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send."""
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait where the caller does not read."""
        await self._writable.wait()

    def answered(self, *, keep_alive: bool) -> None:
        """Answer the next request, or wait for one."""
        self._now = None
        if not keep_alive or (self._is_last and not self._next):
            self.close()
        elif self._next:
            self._go_on()
        elif not self._head_bytes:
            self._is_idle = self._in_head
            self.deadline_s = self._loop.time() + (KEEP_ALIVE_S if self._in_head else HEAD_S)
        self.read_on()

    def close(self) -> None:
        """Hang up, when what was written has left."""
        self._transport.close()

    # What the listener calls.

    def end_late(self) -> None:
        """Nothing came until the deadline."""
        if self._now is None and (self._is_idle or not self._in_head):
            self.close()
        elif self._now is None:
            self._refuse(408)

    def end(self) -> None:
        """Take no more requests, and hang up when none is being answered."""
        self._is_last = True
        self._next.clear()
        if self._now is None:
            self.close()

    def abort(self) -> None:
        """Hang up at once."""
        self._transport.abort()

    def _go_on(self) -> None:
        self._now = self._next.popleft()
        task = self._loop.create_task(self._now.run(self._connections.app))
        self._connections.tasks.add(task)
        task.add_done_callback(self._connections.tasks.discard)

    def _pause(self) -> None:
        if not self._is_paused and not self._transport.is_closing():
            self._is_paused = True
            self._transport.pause_reading()

    def _head_is_too_large(self, data: bytes) -> bool:
        """Note that `data` came. Where it makes too much: is all that a head, or a body right behind it?"""
        if not self._head_bytes:
            self.deadline_s, self._is_idle = self._loop.time() + HEAD_S, False
        before, self._head_bytes = self._head_bytes, self._head_bytes + len(data)
        if self._head_bytes <= HEAD_BYTES:
            return False
        end = data.find(b"\r\n\r\n")
        return end < 0 or before + end > HEAD_BYTES

    def _refuse(self, status: int) -> None:
        """What arrives gets no other answer than this. Requests before it are answered first, then that is the end."""
        self._is_last = True
        if self._now is not None and (self._now is not self._arriving or self._now.began):
            self._pause()
        elif not self._transport.is_closing():
            if self._now is not None:
                self._now.leave()
            self.write(STATUS_LINES[status] + b"content-length: 0\r\nconnection: close\r\n\r\n")
            self.close()

    def _scope(self) -> Scope:
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        return {
            **self._base,
            "http_version": self._parser.get_http_version(),
            "method": self._parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": self._headers,
        }


def _address(name: Any) -> tuple[str, int] | None:
    """Host and port; None on a unix socket."""
    return (name[0], name[1]) if isinstance(name, tuple) else None
