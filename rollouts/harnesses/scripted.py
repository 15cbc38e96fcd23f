"""A harness that follows a script, for tests of tasks, environments and trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from palestra.rollouts.harnesses.base import Endpoint
from palestra.rollouts.world import World


class ScriptedHarness:
    """Plays given actions in order and asks no model: its rollouts have steps but no calls."""

    name = "scripted"
    version = "1"

    def __init__(self, script: Callable[[World], Iterable[str]]) -> None:
        """`script(world)` yields actions; a generator may look at `world.observation` between them."""
        self._script = script

    async def run(self, world: World, endpoint: Endpoint) -> None:
        """Play until the script or the world ends."""
        for action in self._script(world):
            await world.act(action)
            if world.over:
                return

    async def aclose(self) -> None:
        """Nothing to release."""
