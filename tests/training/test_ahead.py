"""Collecting ahead: how far, in which order the sampler learns, and what a checkpoint holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from palestra.tasks.task import TaskSet
from palestra.training.ahead import Ahead
from palestra.training.collect import Collected
from palestra.training.pace import paces
from palestra.training.samplers import Budget, Draw, Group

MakeTasks = Callable[..., TaskSet]
BATCH = 4
"""Rollouts of a step."""


class Diary:
    """A sampler that keeps a diary."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def propose(self, budget: Budget, played: Sequence[Group]) -> list[Draw]:
        self.lines.append("propose")
        return []

    def weights(self, budget: Budget, played: Sequence[Group]) -> dict[str, float]:
        return {}

    def observe(self, played: Sequence[Group]) -> None:
        self.lines.append(f"observe {played[0].name}")

    def state_dict(self) -> dict[str, Any]:
        return {"lines": self.lines}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.lines = list(state["lines"])


class Plays:
    """A collector that takes a few turns of the event loop."""

    def __init__(self, sampler: Diary, tasks: TaskSet) -> None:
        self.sampler, self.tasks = sampler, tasks
        self.begun: list[int] = []
        self.broken = False
        self.held = dict[int, asyncio.Event]()
        """Steps that do not end before their event."""

    async def step(self, step: int) -> Collected:
        self.begun.append(step)
        self.sampler.propose(Budget(1, 1), [])
        await asyncio.sleep(0)
        if step in self.held:
            await self.held[step].wait()
        if self.broken:
            raise LookupError("no world")
        return Collected([], [Group(self.tasks[0], f"g{step}", (1.0, None))], {})


class Run:
    """Trains nothing, and in between lets everything happen that can."""

    def __init__(
        self, tasks: TaskSet, staleness: int, steps: int = 6, pace: str = "in_turn", **options: int
    ) -> None:
        self.sampler = Diary()
        self.plays = Plays(self.sampler, tasks)
        self.ahead = Ahead(
            self.plays,
            self.sampler,
            tasks,
            staleness=staleness,
            steps=steps,
            pace=paces[pace](staleness, BATCH, **options),
        )
        self.leads: list[int] = []
        self.checkpoints: list[dict[str, Any]] = [self.ahead.state_dict()]

    async def go(self, first: int, stop: int) -> None:
        self.ahead.published(first)
        for step in range(first, stop):
            collected = await self.ahead.take(step)
            for _ in range(20):
                await asyncio.sleep(0)
            self.leads.append(max(self.plays.begun) - step)
            self.ahead.trained(step, collected.groups)
            self.checkpoints.append(self.ahead.state_dict())
            self.ahead.published(step + 1)


@pytest.mark.parametrize("pace", paces)
@pytest.mark.parametrize("staleness", [0, 1, 2, 9])
async def test_no_step_begins_before_its_weights_are_fresh_enough(
    parity_tasks: MakeTasks, staleness: int, pace: str
) -> None:
    run = Run(parity_tasks(2), staleness, pace=pace)
    await run.go(0, 6)
    assert run.plays.begun == list(range(6)), "every step once, none beyond the last"
    assert run.leads == [min(staleness, 5 - step) for step in range(6)]


@pytest.mark.parametrize("pace", paces)
@pytest.mark.parametrize("staleness", [0, 1, 2])
async def test_the_sampler_learns_in_an_order_that_depends_on_staleness_alone(
    parity_tasks: MakeTasks, staleness: int, pace: str
) -> None:
    run = Run(parity_tasks(2), staleness, pace=pace)
    await run.go(0, 6)
    for step in range(6):
        before = run.sampler.lines[: [i for i, x in enumerate(run.sampler.lines) if x == "propose"][step]]
        seen = [x for x in before if x.startswith("observe")]
        assert seen == [f"observe g{s}" for s in range(max(step - staleness, 0))]


@pytest.mark.parametrize("pace", paces)
@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("at", [0, 1, 2, 4])
async def test_a_run_that_continues_proposes_the_same_again(
    parity_tasks: MakeTasks, staleness: int, at: int, pace: str
) -> None:
    tasks = parity_tasks(2)
    whole, killed, second = (Run(tasks, staleness, pace=pace) for _ in range(3))
    await whole.go(0, 6)
    await killed.go(0, at)
    await killed.ahead.aclose()
    second.ahead.load_state_dict(killed.checkpoints[at], at)
    await second.go(at, 6)
    assert second.sampler.lines == whole.sampler.lines
    assert second.plays.begun == list(range(at, 6))
    assert second.checkpoints[-1] == whole.checkpoints[-1]


async def test_what_cannot_be_collected_is_told_where_it_is_asked_for(parity_tasks: MakeTasks) -> None:
    run = Run(parity_tasks(2), 2)
    run.ahead.published(0)
    await run.ahead.take(0)
    run.plays.broken = True
    with pytest.raises(LookupError, match="no world"):
        await run.ahead.take(1)
    assert run.plays.begun == [0, 1], "and nothing after it is begun"
    await run.ahead.aclose()


@pytest.mark.parametrize(
    ("pace", "options", "begun"),
    [
        ("in_turn", {}, [0]),
        ("capacity", {}, [0, 1, 2]),
        ("capacity", {"max_running": 2 * BATCH + 1}, [0, 1]),
    ],
)
async def test_a_slow_step_holds_up_the_next_ones_in_turn_alone(
    parity_tasks: MakeTasks, pace: str, options: dict[str, int], begun: list[int]
) -> None:
    run = Run(parity_tasks(2), 2, pace=pace, **options)
    run.plays.held = {step: asyncio.Event() for step in range(6)}
    run.ahead.published(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert run.plays.begun == begun
    run.plays.held[1].set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert run.plays.begun == ([0] if pace == "in_turn" else [0, 1, 2]), "the weights allow no more"
    for event in run.plays.held.values():
        event.set()
    await run.go(0, 6)
    assert run.plays.begun == list(range(6))
