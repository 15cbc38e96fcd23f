"""The network as a browser context sees it: an HTTP proxy that knows the sites of its episode and nothing else.

Every context is told to use one port of this gateway as its proxy, for loopback addresses too. A request for an
origin of the episode goes to its application, in this process; any other is answered 403 and noted. There is no
way around it: names are not resolved, https and web sockets would need CONNECT, which is refused, and QUIC and
WebRTC are off (`host.py`). Service workers, frames and prefetches use the same proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

App = Callable[..., Any]
"""An ASGI 3 application."""

MAX_BLOCKED = 100
_STATIC = b"public, max-age=86400"


@dataclass(slots=True)
class Route:
    """What one port leads to. `sites`: applications by host name."""

    port: int
    sites: Mapping[str, App] = field(default_factory=dict)
    blocked: list[str] = field(default_factory=list)
    """URLs that were refused, the first `MAX_BLOCKED`."""
    unsafe: int = 0
    """Requests that may have changed something: neither GET nor HEAD."""

    def refuse(self, url: str) -> None:
        """Note an address outside of the sites."""
        if len(self.blocked) < MAX_BLOCKED:
            self.blocked.append(url)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Protocol(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]
    """HTTP without tunnels: a request for one is answered and noted like any other address outside."""

    gateway: Gateway

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if not data.startswith(b"CONNECT "):
            super().data_received(data)
            return
        route = self.gateway.route(self.transport.get_extra_info("sockname")[1])
        route.refuse(data.split(b" ", 2)[1].decode("latin-1"))
        self.transport.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()


class Gateway:
    """One server on `ports` loopback sockets. Use it from one event loop."""

    def __init__(self, ports: int) -> None:
        self._sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(ports)]
        self._routes = {s.getsockname()[1]: Route(s.getsockname()[1]) for s in self._sockets}
        self._free = list(self._routes.values())[::-1]
        protocol = type("_Bound", (_Protocol,), {"gateway": self})
        self._server = _Server(
            uvicorn.Config(
                self._answer, http=protocol, ws="none", lifespan="off", interface="asgi3", access_log=False,
                log_config=None, server_header=False, date_header=False, proxy_headers=False,
                timeout_keep_alive=600,
            )
        )  # fmt: skip

    async def start(self) -> None:
        """Return once requests are taken."""
        self._task = asyncio.create_task(self._server.serve(sockets=self._sockets), name="palestra-gateway")
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.001)
        if self._task.done():
            await self._task

    def route(self, port: int) -> Route:
        """What a port leads to."""
        return self._routes[port]

    def open(self) -> Route | None:
        """A port that is free, or None."""
        return self._free.pop() if self._free else None

    def release(self, route: Route) -> None:
        """The port is free again, and leads nowhere."""
        route.sites = {}
        self._free.append(route)

    async def aclose(self) -> None:
        """Stop; connections that are open are cut."""
        self._server.should_exit = self._server.force_exit = True
        await self._task

    async def _answer(self, scope: dict[str, Any], receive: App, send: App) -> None:
        route = self._routes[scope["server"][1]]
        host = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"host"), "")
        app = route.sites.get(host)
        if app is None:
            route.refuse(f"{host}{scope['path']}")
            await _refuse(send)
            return
        route.unsafe += scope["method"] not in ("GET", "HEAD")
        await app({**scope, "server": (host, 80), "root_path": ""}, receive, send)


async def _refuse(send: App) -> None:
    headers = [(b"content-type", b"text/plain"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": b"This address is outside of the task's sites."})


def uncached(app: App) -> App:
    """`app` with every answer marked as not to be stored: for sites whose pages depend on their state."""

    async def answer(scope: dict[str, Any], receive: App, send: App) -> None:
        async def marked(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                kept = [(k, v) for k, v in message["headers"] if k.lower() != b"cache-control"]
                message = {**message, "headers": [*kept, (b"cache-control", b"no-store")]}
            await send(message)

        await app(scope, receive, marked)

    return answer


def files(read: Callable[[str], tuple[bytes, str, str] | None]) -> App:
    """An application that serves what `read(path)` returns: (body, content type, content security policy)."""

    async def answer(scope: dict[str, Any], receive: App, send: App) -> None:
        found = read(scope["path"])
        body, kind, policy = found or (b"not found", "text/plain", "")
        headers = [(b"content-type", kind.encode()), (b"cache-control", _STATIC)]
        headers += [(b"content-security-policy", policy.encode())] if policy else []
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return answer


def wsgi(app: Callable[..., Any]) -> App:
    """A WSGI application (Django, Flask, ...) as an ASGI one; it is called in threads."""
    from a2wsgi import WSGIMiddleware

    found: App = WSGIMiddleware(app)
    return found
