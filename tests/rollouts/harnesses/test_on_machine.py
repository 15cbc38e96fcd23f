"""Programs that act on the machine of a world by themselves: where they run, what they reach, which steps they make."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, closing

import numpy as np
import pytest

import swe
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.harnesses import CommandLineHarness
from palestra.rollouts.harnesses.machine_place import MachinePlace
from palestra.rollouts.harnesses.recipes.install import Inside
from palestra.rollouts.local import local
from palestra.rollouts.runner import Job, RunSpec
from palestra.rollouts.testing import tool_call
from palestra.tasks.task import Task
from palestra.training.advantages import estimators
from palestra.training.decisions import decisions
from palestra.trajectories.model import Trajectory
from small_agent import SmallAgent

TITLE = "A title"
LOOK = tool_call("bash", command="grep -n 'end < start' -r .")
REPAIR = tool_call("bash", command=f"sed -i 's/end < start/end <= start/' {swe.PATH}")
SPOIL = tool_call("bash", command=f"echo 'x = 1' >> {swe.PATH}")
DONE = "It is repaired."


class Games:
    """Lets small agents repair the intervals package, each by a script of its own."""

    def __init__(self, rendering: Rendering, stack: AsyncExitStack) -> None:
        self._rendering, self._stack = rendering, stack

    async def play(self, *scripts: Sequence[str], task: Task | None = None) -> list[Trajectory]:
        """One group, an attempt for each script."""
        replies = {f"run/g/{k}": [TITLE, *script] for k, script in enumerate(scripts)}
        engine = ScriptedEngine(self._rendering, replies, context_tokens=200_000)
        harness = CommandLineHarness(SmallAgent())
        stack = await self._stack.enter_async_context(local(engine, self._rendering, harness=harness))
        jobs = [Job(task or swe.task(), "g", k) for k in range(len(scripts))]
        return await stack.runner.run(jobs, RunSpec("run", seed=1, attempts=1))


@pytest.fixture
async def games(rendering: Rendering) -> AsyncIterator[Games]:
    swe.machines()
    async with AsyncExitStack() as stack:
        yield Games(rendering, stack)


async def test_an_agent_repairs_the_tree_that_it_runs_on(games: Games) -> None:
    [got] = await games.play([LOOK, REPAIR, DONE])
    assert got.rollout.reward == 1.0, got.rollout
    assert (got.rollout.harness, [c.role for c in got.calls]) == (
        "small-agent",
        ["auxiliary", *["agent"] * 3],
    )
    assert [step.call for step in got.steps] == [1, 2, 3]
    assert [step.action for step in got.steps][2] == DONE
    assert got.steps[0].tool_call_id is not None and swe.PATH in got.steps[0].observation
    anchors = [step.anchor for step in got.steps]
    assert anchors[0] == anchors[1] != anchors[2]


async def test_doing_nothing_is_worth_nothing(games: Games) -> None:
    [got] = await games.play([DONE])
    assert (got.rollout.reward, len(got.steps)) == (0.0, 1)


async def test_calls_made_at_once_are_one_step(games: Games) -> None:
    [got] = await games.play([f"{LOOK}\n{REPAIR}", DONE])
    assert got.rollout.reward == 1.0
    assert [step.action.count('"bash"') for step in got.steps] == [2, 0]
    assert got.steps[0].anchor != got.steps[1].anchor


async def test_black_box_rollouts_that_meet_get_step_advantages(games: Games) -> None:
    got = await games.play([LOOK, REPAIR, DONE], [LOOK, SPOIL, DONE], [LOOK, DONE])
    assert [t.rollout.reward for t in got] == [1.0, 0.0, 0.0]
    found = decisions(got)
    keys = dict(zip(found.keys, found.table.anchor.tolist(), strict=True))
    start = keys["run/g/0", 1]
    met = [key for key, anchor in keys.items() if anchor == start]
    assert set(met) == {(f"run/g/{k}", call) for k in range(3) for call in (1, 2)}
    alone = estimators["gigpo"](found.table, gamma=0.9, step_weight=0.0)
    both = estimators["gigpo"](found.table, gamma=0.9, step_weight=1.0)
    by_key = dict(zip(found.keys, (both - alone).tolist(), strict=True))
    # Where all three stood before, the repair was better than spoiling the file and than giving up.
    assert by_key["run/g/0", 2] > by_key["run/g/0", 1] > 0 > by_key["run/g/1", 2] == by_key["run/g/2", 2]
    assert np.abs(both - alone).max() > 0.5


async def test_the_turns_of_the_task_end_the_program(games: Games) -> None:
    task = swe.task()
    short = task.model_copy(update={"budget": task.budget.model_copy(update={"turns": 2})})
    [got] = await games.play([LOOK, REPAIR, LOOK, LOOK], task=short)
    assert (got.rollout.truncated, len(got.steps), got.rollout.reward) == (True, 2, 1.0)
    assert len([c for c in got.calls if c.role == "agent"]) == 2


REACH = """
import socket
for address in [("1.1.1.1", 53), ("169.254.169.254", 80), ("127.0.0.1", 22)]:
    try:
        socket.create_connection(address, 2).close()
        print("reached", address)
    except OSError as error:
        print("refused", error.errno)
"""


async def test_nothing_but_the_proxy_is_reached(games: Games) -> None:
    look = tool_call("bash", command=f"python3 -c '{REACH}'; ls /root; cat /etc/shadow")
    [got] = await games.play([look, DONE])
    said = got.steps[0].observation
    assert "reached" not in said and said.count("refused") == 3
    assert said.count("Permission denied") == 2


@pytest.fixture
def place() -> Iterator[MachinePlace]:
    task = swe.task()
    with (
        swe.machines().fresh(task) as machine,
        closing(MachinePlace(machine, swe.repair().workdir, Inside("python3"))) as made,
    ):
        yield made


async def test_what_the_program_leaves_running_ends_with_it(place: MachinePlace) -> None:
    ended = await place.run(["bash", "-c", "setsid sleep 300 & echo begun"], env={}, timeout_s=60)
    assert (ended.exit_code, ended.stdout) == (0, "begun\n")
    assert (await place.run(["pgrep", "-x", "sleep"], env={}, timeout_s=60)).exit_code == 1


async def test_a_program_is_stopped_on_demand_and_by_its_time(place: MachinePlace) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, stop.set)
    ended = await place.run(["sleep", "300"], env={}, timeout_s=60, stop=stop)
    late = await place.run(["sleep", "300"], env={}, timeout_s=0.2)
    assert (ended.exit_code, late.exit_code) == (None, None)
    assert (await place.run(["true"], env={}, timeout_s=60)).exit_code == 0


async def test_a_program_that_hangs_is_ended_with_its_attempt(games: Games) -> None:
    task = swe.task()
    brief = task.model_copy(update={"budget": task.budget.model_copy(update={"wall_s": 6.0})})
    [got] = await games.play([tool_call("bash", command="sleep 300")], task=brief)
    assert got.rollout.failure is not None and got.rollout.failure.boundary == "budget"
