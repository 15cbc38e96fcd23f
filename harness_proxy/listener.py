"""uvicorn inside the running event loop: one socket, no signal handlers, no access log, no lifespan."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from palestra.harness_proxy.guarded import GuardedProtocol

MAX_CONNECTIONS = 20_000
"""More are answered with 503."""


class _Server(uvicorn.Server):
    """A server that leaves the process's signal handlers alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _server(app: Callable[..., Any], uds: str | None = None) -> _Server:
    return _Server(
        uvicorn.Config(
            app, http=GuardedProtocol, ws="none", lifespan="off", interface="asgi3", access_log=False,
            log_config=None, server_header=False, date_header=False, proxy_headers=False,
            timeout_keep_alive=600, backlog=2048, limit_concurrency=MAX_CONNECTIONS, uds=uds,
        )
    )  # fmt: skip


class Listener:
    """A listening server. Make one with `open`."""

    def __init__(self, server: uvicorn.Server, task: asyncio.Task[None], url: str) -> None:
        self.url = url
        self._server = server
        self._task = task

    @classmethod
    async def open(cls, app: Callable[..., Any], host: str, port: int) -> Listener:
        """Listen on host:port and return once connections are taken. Raises OSError where that is
        impossible."""
        sock = socket.create_server((host, port), backlog=2048)
        return await cls._serve(_server(app), [sock], f"http://{host}:{sock.getsockname()[1]}")

    @classmethod
    async def open_unix(cls, app: Callable[..., Any], path: Path) -> Listener:
        """The same on a unix socket, for callers that have no network. Raises OSError."""
        return await cls._serve(_server(app, uds=str(path)), None, f"unix://{path}")

    @classmethod
    async def _serve(cls, server: _Server, sockets: list[socket.socket] | None, url: str) -> Listener:
        task = asyncio.create_task(server.serve(sockets=sockets), name="palestra-proxy")
        while not server.started and not task.done():
            await asyncio.sleep(0.001)
        if task.done():
            await task
        return cls(server, task, url)

    async def aclose(self) -> None:
        """Stop; connections that are open are cut."""
        self._server.should_exit = self._server.force_exit = True
        await self._task
