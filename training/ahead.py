"""Rollouts of the steps to come, collected while an update runs: bounded by how old their policy may be.

With staleness k the rollouts of step n may begin when version n - k is served, so up to k steps are collected ahead,
one after the other or at once (`pace.py`). k = 0 is the synchronous loop: nothing is collected but the step that is
about to be trained.

The sampler learns what a step showed in an order that depends on k alone: before it proposes for step n it has seen
the steps before n - k. A checkpoint holds the sampler as it was before the first step
that is not trained yet, so that a run which continues proposes the same again and takes what the store has of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Protocol

from palestra.tasks.task import TaskSet
from palestra.training.collect import Collected
from palestra.training.pace import InTurn, Pace
from palestra.training.samplers import Allocator, Group


class Collects(Protocol):
    """What `Collector` does."""

    async def step(self, step: int) -> Collected:
        """The rollouts of step `step`."""
        ...


@dataclass(frozen=True, slots=True)
class _Begin:
    """A sampler before it proposed for a step."""

    sampler: dict[str, Any]
    seen: int
    """It had seen the steps before this one."""


class Ahead:
    """Begins steps 0, 1, ... in order, at most `staleness` of them ahead of the weights, and none from `steps` on."""

    def __init__(
        self,
        collector: Collects,
        sampler: Allocator,
        tasks: TaskSet,
        *,
        staleness: int,
        steps: int,
        pace: Pace | None = None,
    ) -> None:
        """`pace`: by default one step after the other."""
        self._collector, self._sampler, self._tasks = collector, sampler, tasks
        self._staleness, self._steps = staleness, steps
        self._pace = pace or InTurn(staleness, 1)
        self._clear(0, 0)

    def _clear(self, version: int, seen: int) -> None:
        self._version = self._next = version
        self._seen = seen
        self._collecting: dict[int, asyncio.Task[Collected]] = {}
        self._proposing = False
        self._begins: dict[int, _Begin] = {}
        self._groups: dict[int, Sequence[Group]] = {}

    async def take(self, step: int) -> Collected:
        """The rollouts of `step`, which is the version that is served; goes on with the next ones meanwhile.

        Raises what the collector raises.
        """
        self._advance()
        collected = await self._collecting[step]
        self._advance()
        return collected

    def trained(self, step: int, groups: Sequence[Group]) -> None:
        """`step` was trained on, and showed `groups`."""
        self._groups[step] = groups
        self._collecting.pop(step)
        self._begins.pop(step)
        if not self._incomplete and not self._broken:
            self._observe()
        oldest = min([b.seen for b in self._begins.values()], default=self._seen)
        self._groups = {s: g for s, g in self._groups.items() if s >= oldest}

    def published(self, version: int) -> None:
        """The engine serves `version` now."""
        self._version = version
        self._advance()

    def state_dict(self) -> dict[str, Any]:
        """The sampler before the first step that is not trained yet, and what it is still to be shown."""
        begin = min(self._begins.items(), default=(0, _Begin(self._sampler.state_dict(), self._seen)))[1]
        pending = {str(s): _plain(g) for s, g in self._groups.items() if s >= begin.seen}
        return {"sampler": begin.sampler, "seen": begin.seen, "pending": pending}

    def load_state_dict(self, state: Mapping[str, Any], version: int) -> None:
        """Continue with `version` served and nothing collected ahead."""
        self._sampler.load_state_dict(state["sampler"])
        self._clear(version, state["seen"])
        self._groups = {int(s): [self._group(g) for g in rows] for s, rows in state["pending"].items()}

    async def aclose(self) -> None:
        """Give up what is being collected; what was committed to the store is found there when it is asked for.

        Nothing more begins before `load_state_dict`.
        """
        self._next = self._steps
        for task in self._collecting.values():
            task.cancel()
        for task in self._collecting.values():
            with suppress(asyncio.CancelledError, Exception):
                await task
        self._collecting.clear()

    @property
    def _incomplete(self) -> int:
        """How many of the steps that were begun are not there yet."""
        return sum(not t.done() for t in self._collecting.values())

    @property
    def _broken(self) -> bool:
        """A step cannot be collected; `take` says why."""
        return any(t.done() and (t.cancelled() or t.exception()) for t in self._collecting.values())

    def _advance(self, _: object = None) -> None:
        """Begin to collect the next step, where nothing is in its way; then perhaps another."""
        if self._next >= self._steps or self._proposing or self._broken or not self._may_begin():
            return
        self._begins[self._next] = _Begin(deepcopy(self._sampler.state_dict()), self._seen)
        self._observe()
        task = asyncio.create_task(self._collector.step(self._next))
        self._collecting[self._next] = task
        self._next += 1
        task.add_done_callback(self._advance)
        self._proposing = True
        asyncio.get_running_loop().call_soon(self._proposed)

    def _proposed(self) -> None:
        """The step that was begun last has asked the sampler, since its task has run."""
        self._proposing = False
        self._advance()

    def _may_begin(self) -> bool:
        return self._pace.may_begin(self._next, self._version, self._next - self._incomplete)

    def _observe(self) -> None:
        """Show the sampler what it may know before it proposes for the next step."""
        while self._seen < self._next - self._staleness and self._seen in self._groups:
            self._sampler.observe(self._groups[self._seen])
            self._seen += 1

    def _group(self, row: Mapping[str, Any]) -> Group:
        if (task := self._tasks.get(row["task"])) is None:
            raise KeyError(row["task"])
        return Group(task, row["name"], tuple(row["scores"]))


def _plain(groups: Sequence[Group]) -> list[dict[str, Any]]:
    return [{"task": g.task.id, "name": g.name, "scores": list(g.scores)} for g in groups]
