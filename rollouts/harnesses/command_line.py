"""External agents as harnesses of the runner: a command-line program plays a world.

    runner = Runner(proxy, CommandLineHarness(find_recipe("codex")))

The program gets the task as its prompt, and the world as a command: `world NAME 'JSON'` calls the tool NAME of
the world and prints the observation (`door.py`). Each attempt has a place of its own. Steps are joined to the
latest call of the session, which is the one that acted unless sub-agents act at once.
"""

from __future__ import annotations

import json

from palestra.rollouts.errors import RolloutError
from palestra.rollouts.harnesses.base import Endpoint
from palestra.rollouts.harnesses.door import COMMAND, Door, command
from palestra.rollouts.harnesses.driver import Driver
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
        """`isolated=False` leaves the network and the machine's files open to the program.

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
        async with self._driver.place(endpoint) as place:
            await place.write({f"bin/{COMMAND}": command(place.path(COMMAND))})
            async with Door(world, endpoint.line).open(place.path(COMMAND)):
                await self._driver.prompt(place, endpoint, prompt_of(world), timeout_s=timeout_s)
        if endpoint.line.stops() and not world.over:
            world.stop()

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
