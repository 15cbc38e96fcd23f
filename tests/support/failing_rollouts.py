"""Rollouts that break among others that do not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from palestra.rollouts.harnesses import Endpoint
from palestra.rollouts.local import Local
from palestra.rollouts.runner import Job, RunSpec
from palestra.rollouts.testing import Puppet, puppet_task
from palestra.rollouts.world import World
from palestra.tasks.task import Task
from palestra.trajectories.model import Failure, Trajectory

Stage = Callable[..., Awaitable[Local]]
SPEC = RunSpec("run")
GOOD = puppet_task("good")


async def play_among_siblings(stack: Local, bad: Task, spec: RunSpec = SPEC) -> Trajectory:
    """The rollout of `bad`, after checking that those around it came to no harm."""
    jobs = [Job(GOOD, "good", 0), Job(bad, "bad"), Job(GOOD, "good", 1), Job(GOOD, "good", 2)]
    got = await stack.runner.run(jobs, spec)
    assert [t.rollout.reward for t in got if t.rollout.task_id == "good"] == [1.0] * 3
    return got[1]


def failed(trajectory: Trajectory) -> Failure:
    """The failure of a rollout, which has no reward."""
    assert trajectory.rollout.reward is None
    assert trajectory.rollout.score is None
    assert trajectory.rollout.failure is not None
    return trajectory.rollout.failure


class Acting:
    """A harness from one function."""

    name, version = "acting", "1"

    def __init__(self, play: Callable[[World, Endpoint], Awaitable[object]]) -> None:
        self._play = play

    async def run(self, world: World, endpoint: Endpoint) -> None:
        if world.task.id == "good":
            await world.act('{"name": "submit", "arguments": {}}')
        else:
            await self._play(world, endpoint)

    async def aclose(self) -> None: ...


async def closed(puppet: Puppet) -> None:
    """Wait until the world is closed, once, and in its own thread where it has one."""
    while not puppet.closed:
        await asyncio.sleep(0.005)
    assert puppet.closed == 1
    assert len(puppet.threads) == 1 or puppet.any_thread
