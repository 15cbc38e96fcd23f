"""Servers run by hand: listen, say where, and go on until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from palestra.cli.errors import UsageError

_HOST = {errno.EADDRNOTAVAIL, socket.EAI_NONAME, socket.EAI_NODATA, socket.EAI_AGAIN}


@contextmanager
def listening(host: str, port: int) -> Iterator[None]:
    """While a server takes its port: what the system answers becomes UsageError."""
    try:
        yield
    except (OSError, OverflowError) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.EADDRINUSE:
            hint = "another program listens there; give another --port, 0 takes a free one"
        elif number in _HOST:
            hint = "this machine has no such address; 127.0.0.1 is itself, 0.0.0.0 is everywhere"
        elif number == errno.EACCES:
            hint = "ports below 1024 are for the administrator; give another --port"
        else:
            raise
        raise UsageError(f"cannot listen on {host}:{port}: {hint}") from error


async def until_stopped() -> None:
    """Wait for SIGINT or SIGTERM. The handlers stay, so that a second Ctrl-C does not cut the ending short."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
