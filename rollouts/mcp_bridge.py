"""Worlds for agents that act through MCP: a command-line harness gets a URL, and its tool calls become steps.

    bridge = await McpBridge.open()
    async with bridge.serving(world) as url:      # http://127.0.0.1:<port>/<secret>/mcp, streamable HTTP
        ...run the agent with this MCP server...

The steps are taken in this process, so they are recorded like those of any harness. Which tool call of which recorded
reply caused a step is found afterwards (`join.py`), or at once where the client sends the id along.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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

    def __init__(self, gate: McpGate, listener: Listener) -> None:
        """Made by `open`."""
        self._gate, self._listener = gate, listener

    @classmethod
    async def open(cls, host: str = "127.0.0.1", port: int = 0) -> McpBridge:
        """Listen. Raises OSError where that is impossible."""
        gate = McpGate()
        return cls(gate, await Listener.open(gate, host, port))

    @asynccontextmanager
    async def serving(self, world: World) -> AsyncIterator[str]:
        """The URL at which `world`, which has begun, is played while the block runs."""
        async with self._gate.serving(mcp_server("palestra", _WorldPlayer(world))) as path:
            yield f"{self._listener.url}{path}"

    async def aclose(self) -> None:
        """Stop listening."""
        await self._listener.aclose()
