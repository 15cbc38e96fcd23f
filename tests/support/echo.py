"""A server on a unix socket that answers every line in capitals."""

from __future__ import annotations

import socketserver
import threading
from pathlib import Path
from types import TracebackType
from typing import Self


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line.upper())


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


class EchoServer:
    """Serves from entering to leaving the block."""

    def __init__(self, path: Path) -> None:
        self._server = _Server(str(path), _Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
