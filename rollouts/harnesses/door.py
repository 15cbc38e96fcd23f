"""A world as a shell command: a unix socket into the episode, and the program that knocks.

One connection is one step: the action as JSON, then the observation as text. Nothing gets out of the episode
but observations; what broke it is told to the runner, not to the agent.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from palestra.rollouts.errors import RolloutError
from palestra.rollouts.harnesses.base import Line
from palestra.rollouts.world import World

COMMAND = "world"
MAX_ACTION_BYTES = 1 << 20
_PROGRAM = """#!{python} -IS
import json, socket, sys
if len(sys.argv) not in (2, 3):
    sys.exit("usage: world NAME 'ARGUMENTS AS A JSON OBJECT'")
name, arguments = (*sys.argv[1:], "{{}}")[:2]
try:
    arguments = json.loads(arguments)
except ValueError:
    pass
door = socket.socket(socket.AF_UNIX)
door.connect({path!r})
door.sendall(json.dumps({{"name": name, "arguments": arguments}}).encode())
door.shutdown(socket.SHUT_WR)
print(door.makefile(encoding="utf-8").read())
"""


def command(path: str) -> str:
    """The program that acts through the socket at `path`."""
    return _PROGRAM.format(python=sys.executable, path=path)


class Door:
    """Lets actions into `world`, each joined to the latest call on `line`."""

    def __init__(self, world: World, line: Line) -> None:
        self._world, self._line = world, line

    @asynccontextmanager
    async def open(self, path: str) -> AsyncIterator[None]:
        """Serve a unix socket at `path`."""
        server = await asyncio.start_unix_server(self._step, path, limit=MAX_ACTION_BYTES)
        try:
            yield
        finally:
            server.close()  # a step that is under way ends by itself, in a world that is closed

    async def _step(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            action = await reader.read(MAX_ACTION_BYTES)
            while not reader.at_eof() and len(action) < MAX_ACTION_BYTES:
                action += await reader.read(MAX_ACTION_BYTES)
            writer.write((await self._act(action)).encode())
            await writer.drain()
        except OSError:
            pass  # the agent's command was killed
        finally:
            writer.close()

    async def _act(self, action: bytes) -> str:
        if self._world.over:
            return "error: the episode is over"
        try:
            return await self._world.act(action.decode("utf-8", "replace"), self._line.last_call())
        except RolloutError:  # the world remembers it, and has no score
            return "error: the world does not answer"
