"""VADE: draw a success rate for every task from what is believed of it, and take the most undecided."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from palestra.tasks.task import Task, TaskSet


class ThompsonSampler:
    """A Beta belief per task; the tasks whose drawn rate p has the largest p (1 - p) come next.

    experimental: of VADE the abstract alone was at hand. Assumed are the gain p (1 - p), and one decay of all
    beliefs towards the prior per observation.
    """

    def __init__(self, tasks: TaskSet, seed: int, *, decay: float = 0.9) -> None:
        """`decay`: what remains of a belief at each observation. Raises ValueError for an empty set."""
        if not len(tasks):
            raise ValueError(f"task set {tasks.name!r} is empty")
        self._tasks, self._seed, self._decay = tasks, seed, decay
        self._proposals = 0
        self._beliefs: dict[str, tuple[float, float]] = {}

    def propose(self, count: int) -> list[Task]:
        """`count` tasks, each once per round through the set."""
        draw = random.Random(f"{self._seed}/{self._proposals}")
        self._proposals += 1
        worth = {task.id: self._gain(task.id, draw) for task in self._tasks}
        best = sorted(self._tasks, key=lambda task: -worth[task.id])
        return [best[i % len(best)] for i in range(count)]

    def observe(self, scores: Mapping[str, Sequence[float]]) -> None:
        """Scores of the valid rollouts of each task, by task id, between 0 and 1."""
        self._beliefs = {i: (a * self._decay, b * self._decay) for i, (a, b) in self._beliefs.items()}
        for task_id, values in scores.items():
            successes, failures = self._beliefs.get(task_id, (0.0, 0.0))
            won = sum(values)
            self._beliefs[task_id] = successes + won, failures + len(values) - won

    def state_dict(self) -> dict[str, Any]:
        """The number of proposals, and successes and failures by task, as plain JSON values."""
        return {"proposals": self._proposals, "beliefs": {i: list(b) for i, b in self._beliefs.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._proposals = int(state["proposals"])
        self._beliefs = {i: (float(a), float(b)) for i, (a, b) in state["beliefs"].items()}

    def _gain(self, task_id: str, draw: random.Random) -> float:
        successes, failures = self._beliefs.get(task_id, (0.0, 0.0))
        p = draw.betavariate(1.0 + successes, 1.0 + failures)
        return p * (1 - p)
