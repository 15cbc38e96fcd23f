"""External agents that act through MCP: the world is a server that the agent's own client connects to.

    runner = Runner(proxy, McpHarness(find_recipe("claude-code")))

The agent sees the tools of the world as its own (mcp__palestra__query, say) and gets the first observation as its
prompt. Which reply caused a step is found in the recording (`rollouts/join.py`). The agent runs in a place of its own
(`place.py`), without a network: the proxy and the server answer there at a loopback port each.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

from palestra.rollouts.errors import RecipeError, RolloutError
from palestra.rollouts.harnesses.base import Endpoint
from palestra.rollouts.harnesses.driver import Driver
from palestra.rollouts.harnesses.recipes.recipe import Address, HarnessRecipe, Launch
from palestra.rollouts.mcp_bridge import McpBridge
from palestra.rollouts.world import World

SERVER = "palestra"
PORT = 8651
"""At which the server answers inside an isolated place."""
_SPARE_S = 5.0


def _codex(launch: Launch, url: str) -> Launch:
    server = f'\n[mcp_servers.{SERVER}]\nurl = "{url}"\nstartup_timeout_sec = 60\n'
    files = {path: text + server for path, text in launch.files.items() if path.endswith("config.toml")}
    return replace(launch, files={**launch.files, **files})


def _claude_code(launch: Launch, url: str) -> Launch:
    config = json.dumps({"mcpServers": {SERVER: {"type": "http", "url": url}}})
    return replace(launch, argv=(*launch.argv, "--strict-mcp-config", "--mcp-config", config))


CONFIGURE: dict[str, Callable[[Launch, str], Launch]] = {"codex": _codex, "claude-code": _claude_code}
"""By recipe: how its launch is told of an MCP server."""


class McpHarness:
    """See the module. One instance serves many rollouts at once."""

    def __init__(self, recipe: HarnessRecipe, *, isolated: bool = True) -> None:
        """`isolated=False` leaves the network and the machine's files open to the program.

        Raises RecipeError for a recipe that has no way to name an MCP server, NotInstalledError.
        """
        if recipe.name not in CONFIGURE:
            raise RecipeError(
                f"{recipe.name} has no MCP configuration here; these have: {', '.join(CONFIGURE)}"
            )
        self._recipe, self._isolated = recipe, isolated
        self._bridge: McpBridge | None = None
        self._opening = asyncio.Lock()
        self.name = f"{recipe.name}+mcp"
        self.version = Driver(recipe).installed().version

    async def run(self, world: World, endpoint: Endpoint) -> None:
        """Let the program work until it ends. Raises RolloutError (`driver.py` says at which boundary)."""
        if endpoint.line is None:
            raise RolloutError("provider", "start", "the proxy is in another process", final=True)
        async with self._opening:
            self._bridge = self._bridge or await self._open()
        socket = self._bridge.unix_socket
        async with self._bridge.serving(world) as url:
            driver = Driver(_told(self._recipe, url), isolated=self._isolated)
            async with driver.place(endpoint, relays={PORT: socket} if socket else None) as place:
                timeout_s = world.task.budget.wall_s + _SPARE_S
                await driver.prompt(place, endpoint, world.observation, timeout_s=timeout_s)
        if endpoint.line.stops() and not world.over:
            world.stop()

    async def _open(self) -> McpBridge:
        return (
            await McpBridge.open_unix(f"http://127.0.0.1:{PORT}")
            if self._isolated
            else await McpBridge.open()
        )

    async def aclose(self) -> None:
        """Close the MCP server."""
        if self._bridge is not None:
            await self._bridge.aclose()
            self._bridge = None


def _told(recipe: HarnessRecipe, url: str) -> HarnessRecipe:
    """`recipe`, whose launches name the MCP server at `url`."""

    class Told(type(recipe)):  # type: ignore[misc]
        def launch(self, program: str, prompt: str, model: Address) -> Launch:
            return CONFIGURE[recipe.name](super().launch(program, prompt, model), url)

    return Told()
