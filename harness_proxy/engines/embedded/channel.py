"""Pickled messages over a socket pair, each with its length before it; both ends are this package.

Writing never waits: what the other side has not taken yet is kept in memory. An event loop is free to make a
socket non-blocking (uvloop does, for one it only watches), so nothing here writes or reads behind its back.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from typing import Any

_LENGTH_BYTES = 8


class Channel:
    """One end. Make it with `open`, in the event loop that uses it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, sock: socket.socket) -> Channel:
        """Takes over one socket of `socket.socketpair()`."""
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def send(self, message: object) -> None:
        """Hand `message` over; a side that is gone does not get it."""
        body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._writer.write(len(body).to_bytes(_LENGTH_BYTES) + body)

    async def receive(self) -> Any:
        """The next message. Raises EOFError when the other side is gone, and OSError."""
        size = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES))
        return pickle.loads(await self._reader.readexactly(size))

    def close(self) -> None:
        """Close this end once everything is written. Calling it twice is fine."""
        self._writer.close()
