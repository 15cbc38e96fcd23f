"""Every task once per epoch."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from palestra.tasks.task import Task, TaskSet


class UniformSampler:
    """Every task once per epoch, in an order shuffled anew for each epoch."""

    def __init__(self, tasks: TaskSet, seed: int) -> None:
        """Raises ValueError for an empty set."""
        if not len(tasks):
            raise ValueError(f"task set {tasks.name!r} is empty")
        self._tasks, self._seed = tasks, seed
        self._drawn = 0

    def propose(self, count: int) -> list[Task]:
        """The next `count` tasks, across the end of an epoch if need be."""
        picked = [self._at(self._drawn + i) for i in range(count)]
        self._drawn += count
        return picked

    def observe(self, scores: Mapping[str, Sequence[float]]) -> None:
        """Every task comes again, whatever came of it."""

    def state_dict(self) -> dict[str, Any]:
        """How many tasks were drawn so far."""
        return {"drawn": self._drawn}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after `drawn` tasks."""
        self._drawn = int(state["drawn"])

    def _at(self, position: int) -> Task:
        epoch, index = divmod(position, len(self._tasks))
        order = list(range(len(self._tasks)))
        random.Random(f"{self._seed}/{epoch}").shuffle(order)
        task = self._tasks[order[index]]
        assert isinstance(task, Task)
        return task
