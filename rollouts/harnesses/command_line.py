"""External agents as harnesses of the runner: a command-line program plays a world.

    runner = Runner(proxy, CommandLineHarness(find_recipe("codex")))

The program gets the task as its prompt. A world that is a machine (`TaskEnv.has_machine`) it acts on by itself: it
runs inside the sandbox, with its own tools, and each reply that it acted on becomes a step (`onlooker.py`).

Any other world it gets as a command: `world NAME 'JSON'` calls the tool NAME of the world and prints the observation
(`door.py`). Each attempt has a place of its own. Steps are joined to the latest call of the session, which is the one
that acted unless sub-agents act at once.
"""

from __future__ import annotations

import json

from palestra.rollouts.errors import RolloutError
from palestra.rollouts.harnesses.base import Endpoint, Line
from palestra.rollouts.harnesses.door import COMMAND, Door, command
from palestra.rollouts.harnesses.driver import Driver
from palestra.rollouts.harnesses.onlooker import Onlooker
from palestra.rollouts.harnesses.recipes.recipe import DialectName, HarnessRecipe
from palestra.rollouts.world import World

_SPARE_S = 5.0
"""The attempt's own wall clock is to strike first."""


class CommandLineHarness:
    """See the module. One instance serves many rollouts at once."""

    def __init__(
        self,
        recipe: HarnessRecipe,
        *,
        dialect: DialectName | None = None,
        isolated: bool = True,
        max_reply_tokens: int = 8192,
    ) -> None:
        """`isolated=False` leaves the network and the machine's files open to a program that acts through `world`.

        Raises RecipeError for a dialect that it does not speak, NotInstalledError where it is not there.
        """
        self._driver = Driver(recipe, dialect=dialect, isolated=isolated, max_reply_tokens=max_reply_tokens)
        self.name = recipe.name
        self.version = self._driver.installed().version

    async def run(self, world: World, endpoint: Endpoint) -> None:
        """Let the program work until it ends. Raises RolloutError (`driver.py` says at which boundary)."""
        if endpoint.line is None:
            raise RolloutError("provider", "start", "the proxy is in another process", final=True)
        timeout_s = world.task.budget.wall_s + _SPARE_S
        play = self._on_machine if world.has_machine else self._through_door
        await play(world, endpoint, endpoint.line, timeout_s)
        if endpoint.line.stops() and not world.over:
            world.stop()

    async def _on_machine(self, world: World, endpoint: Endpoint, line: Line, timeout_s: float) -> None:
        onlooker = Onlooker(world)
        async with self._driver.place_on(world, endpoint) as place:
            line.watch(onlooker)
            await self._driver.prompt(place, endpoint, world.observation, timeout_s=timeout_s)
        await onlooker.finish(line)

    async def _through_door(self, world: World, endpoint: Endpoint, line: Line, timeout_s: float) -> None:
        async with self._driver.place(endpoint) as place:
            await place.write({f"bin/{COMMAND}": command(place.path(COMMAND))})
            async with Door(world, line).open(place.path(COMMAND)):
                await self._driver.prompt(place, endpoint, prompt_of(world), timeout_s=timeout_s)

    async def aclose(self) -> None:
        """Nothing to release."""


def prompt_of(world: World) -> str:
    """The task, and how to act."""
    lines = [
        f"- {f['name']} {json.dumps(f.get('parameters', {}).get('properties', {}))}: {f.get('description', '')}"
        for f in (tool["function"] for tool in world.tools)
    ]
    return "\n".join(
        [
            world.observation,
            "",
            f"Act by the shell command `{COMMAND} NAME 'ARGUMENTS AS A JSON OBJECT'`, which prints what "
            "happens. NAME is one of:",
            *lines,
        ]
    )
