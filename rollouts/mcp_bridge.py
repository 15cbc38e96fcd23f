"""Worlds for agents that act through MCP: a command-line harness gets a URL, and its tool calls become steps.

    bridge = await McpBridge.open()
    async with bridge.serving(world) as url:      # http://127.0.0.1:<port>/<secret>/mcp, streamable HTTP
        ...run the agent with this MCP server...

Agents without a network reach `McpBridge.open_unix(...)`, whose socket is relayed to them.

The steps are taken in this process, so they are recorded like those of any harness. Which tool call of which recorded
reply caused a step is found afterwards (`join.py`), or at once where the client sends the id along.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from palestra.envs.serving.mcp_server import McpGate, mcp_server
from palestra.harness_proxy.listener import Listener
from palestra.rollouts.errors import RolloutError
from palestra.rollouts.world import World

OVER = "The episode is over. Nothing more can be done."


class _WorldPlayer:
    """A world as the MCP server sees it. What breaks, breaks the episode (`World.act`), and is said."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def tools(self) -> list[dict[str, Any]]:
        return self._world.tools

    @property
    def observation(self) -> str:
        return self._world.observation

    async def play(self, action: str, tool_call_id: str | None) -> tuple[str, bool]:
        if self._world.over:
            return OVER, False
        try:
            observation = await self._world.act(action, tool_call_id=tool_call_id)
        except RolloutError as error:
            return f"error: {error}", False
        return observation, self._world.steps[-1].valid_action


class McpBridge:
    """One listening socket for all the worlds of a run."""

    def __init__(
        self, gate: McpGate, listener: Listener, url: str, folder: tempfile.TemporaryDirectory[str] | None
    ) -> None:
        """Made by `open` or `open_unix`."""
        self.url = url
        self._gate, self._listener, self._folder = gate, listener, folder

    @classmethod
    async def open(cls, host: str = "127.0.0.1", port: int = 0) -> McpBridge:
        """Listen. Raises OSError where that is impossible."""
        gate = McpGate()
        listener = await Listener.open(gate, host, port)
        return cls(gate, listener, listener.url, None)

    @classmethod
    async def open_unix(cls, url: str) -> McpBridge:
        """Listen on a unix socket that only this user can reach; whoever plays finds it relayed to `url`.

        Raises OSError where that is impossible.
        """
        gate, folder = McpGate(), tempfile.TemporaryDirectory(prefix="palestra-mcp-")
        return cls(gate, await Listener.open_unix(gate, Path(folder.name) / "socket"), url, folder)

    @property
    def unix_socket(self) -> Path | None:
        """Where it listens, if it was made by `open_unix`."""
        return Path(self._folder.name) / "socket" if self._folder is not None else None

    @asynccontextmanager
    async def serving(self, world: World) -> AsyncIterator[str]:
        """The URL at which `world`, which has begun, is played while the block runs."""
        async with self._gate.serving(mcp_server("palestra", _WorldPlayer(world))) as path:
            yield f"{self.url}{path}"

    async def aclose(self) -> None:
        """Stop listening."""
        await self._listener.aclose()
        if self._folder is not None:
            self._folder.cleanup()
