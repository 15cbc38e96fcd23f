"""A listening server inside the running event loop: no signal handlers, no thread, no access log."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from palestra.harness_proxy import http11
from palestra.harness_proxy.asgi import App
from palestra.harness_proxy.http11 import Connection, Connections

MAX_CONNECTIONS = 20_000
"""More are answered with 503."""
_BACKLOG = 2048
_LOOK_S = 1.0
"""Between two looks at callers who are late."""
_CLOSE_S = 1.0
"""For what is being answered when the server stops."""


class Listener:
    """A listening server. Make one with `open`."""

    def __init__(self, server: asyncio.Server, connections: Connections, url: str) -> None:
        self.url = url
        self._server = server
        self._connections = connections
        self._look()

    @classmethod
    async def open(cls, app: App, host: str, port: int) -> Listener:
        """Listen on host:port. Raises OSError where that is impossible."""
        connections = Connections(app, MAX_CONNECTIONS)
        sock = socket.create_server((host, port), backlog=_BACKLOG)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(connections), sock=sock, backlog=_BACKLOG)
        return cls(server, connections, f"http://{host}:{sock.getsockname()[1]}")

    @classmethod
    async def open_unix(cls, app: App, path: Path) -> Listener:
        """The same on a unix socket, for callers that have no network; any user may connect. Raises OSError."""
        connections = Connections(app, MAX_CONNECTIONS)
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: Connection(connections), path, backlog=_BACKLOG)
        path.chmod(0o666)
        return cls(server, connections, f"unix://{path}")

    async def aclose(self) -> None:
        """Stop. What is being answered has a second; then connections are cut."""
        self._timer.cancel()
        self._server.close()
        for connection in list(self._connections.open):
            connection.end()
        if self._connections.tasks:
            await asyncio.wait(self._connections.tasks, timeout=_CLOSE_S)
        for connection in list(self._connections.open):
            connection.abort()
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    def _look(self) -> None:
        self._connections.end_late()
        look_s = min(_LOOK_S, http11.HEAD_S / 4)
        self._timer = asyncio.get_running_loop().call_later(look_s, self._look)
