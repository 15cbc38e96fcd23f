"""HTTP/1.1 to one server over connections that are kept: a body out, a body in, little in between.

For a model server on the same network, which is asked thousands of times a second: a general client costs more CPU
there than everything else about a call. No redirects, no cookies, no compression, no proxies; `httptools` parses.
A connection that was idle for a while is not used again, since the server may be closing it at that moment.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httptools

CONNECT_S = 30.0
IDLE_S = 4.0
"""uvicorn, and so vLLM, closes a connection that was idle for 5 s."""


class HttpError(Exception):
    """Raised when no whole response came."""


class HttpClient:
    """Any number of requests at once; concurrency is the caller's to bound."""

    def __init__(self, base_url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        """`headers` go with every request. Raises ValueError for a URL that is not http(s)://host..."""
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or url.hostname is None:
            raise ValueError(f"the URL must look like http://host:port/v1, got {base_url!r}")
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._host, self._port = url.hostname, url.port or (443 if self._tls else 80)
        self._path, self._timeout_s = url.path.rstrip("/"), timeout_s
        self._head = _fields({"host": url.netloc.rpartition("@")[2], "accept": "*/*", **headers})
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """(status, body) of the response. Raises HttpError, OSError and TimeoutError.

        A caller that is cancelled hangs up, so that the server can free what works for it.
        """
        fields = _fields(headers) if headers else ""
        head = (
            f"{method} {self._path}{path} HTTP/1.1\r\n{self._head}{fields}content-length: {len(body)}\r\n\r\n"
        )
        message = head.encode() + body
        connection = self._kept() or await self._connect()
        try:
            answer = await connection.exchange(message, self._timeout_s)
        except BaseException:
            connection.close()
            raise
        if connection.is_usable:
            self._idle.append(connection)
        return answer

    async def aclose(self) -> None:
        """Cut all connections; requests in flight fail. Calling it twice is fine."""
        for connection in list(self._open):
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    def _kept(self) -> _Connection | None:
        """The connection that was used last, if that is not long ago."""
        now_s = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable and now_s - connection.used_s < IDLE_S:
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        async with asyncio.timeout(min(CONNECT_S, self._timeout_s)):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self._open), self._host, self._port, ssl=self._tls
            )
        return connection


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, registry: set[_Connection]) -> None:
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._ends_with_connection = self._has_head = False
        self._is_open = False
        self.is_usable = False
        """Open, between two requests."""
        self.used_s = 0.0

    async def exchange(self, message: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Send a request and wait for its response. Raises HttpError and TimeoutError."""
        if not self._is_open:
            raise HttpError("the server hung up")
        self.is_usable = False
        self._answer = self._loop.create_future()
        timer = self._loop.call_later(
            timeout_s, self._fail, TimeoutError(f"no answer within {timeout_s:g} s")
        )
        self._expect()
        self._transport.write(message)
        try:
            return await self._answer
        finally:
            timer.cancel()

    def close(self) -> None:
        """Hang up at once."""
        self.is_usable = False
        self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport
        self._registry.add(self)
        self._is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        self._registry.discard(self)
        self._is_open = self.is_usable = False
        if error is None and self._ends_with_connection:
            self._succeed()
        self._fail(
            HttpError(f"the server hung up in the middle ({error!r})" if error else "the server hung up")
        )

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(HttpError(f"the answer is not HTTP: {error}"))
            self.close()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # a second answer to one question

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() in (b"content-length", b"transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:  # more is to come
            self._expect()
        else:
            self.is_usable = not self._transport.is_closing() and self._parser.should_keep_alive()
            self._succeed()

    def _expect(self) -> None:
        self._body.clear()
        self._ends_with_connection, self._has_head = True, False

    def _succeed(self) -> None:
        self.used_s = self._loop.time()
        if self._answer is not None and not self._answer.done() and self._has_head:
            self._answer.set_result((self._parser.get_status_code(), bytes(self._body)))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _fields(headers: Mapping[str, str]) -> str:
    """Header fields as they are sent. Raises ValueError for a value that would be more than one field."""
    text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    if text.count("\n") != len(headers) or text.count("\r") != len(headers):
        raise ValueError(f"a header cannot have line breaks: {headers!r}")
    return text
