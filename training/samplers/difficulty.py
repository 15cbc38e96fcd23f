"""Difficulty-targeted selection: tasks that the policy is expected to solve about half of the time."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from palestra.tasks.task import Task, TaskSet


class DifficultySampler:
    """Tasks drawn without replacement with probability proportional to exp(-|d - target| / temperature).

    d is the expected success: an average of what was seen of the task, with `decay`, and the mean over known tasks for
    one that was never tried. Together with replay "recent" this is difficulty-targeted selection with rollout replay.
    Source: Sun et al. 2025, arXiv:2506.05316, section 4.

    Departures: d there is predicted from a reference set by attention over embeddings; here from the task's own past.
    """

    def __init__(
        self,
        tasks: TaskSet,
        seed: int,
        *,
        target: float = 0.5,
        temperature: float = 0.1,
        decay: float = 0.5,
    ) -> None:
        """Raises ValueError for an empty set, or a temperature that is not positive."""
        if not len(tasks):
            raise ValueError(f"task set {tasks.name!r} is empty")
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        self._tasks, self._seed = tasks, seed
        self._target, self._temperature, self._decay = target, temperature, decay
        self._proposals = 0
        self._success: dict[str, float] = {}

    def propose(self, count: int) -> list[Task]:
        """`count` tasks, each once per round through the set."""
        draw = random.Random(f"{self._seed}/{self._proposals}")
        self._proposals += 1
        unknown = fmean(self._success.values()) if self._success else self._target
        keys = {t.id: self._key(self._success.get(t.id, unknown), draw) for t in self._tasks}
        best = sorted(self._tasks, key=lambda task: -keys[task.id])
        return [best[i % len(best)] for i in range(count)]

    def observe(self, scores: Mapping[str, Sequence[float]]) -> None:
        """Scores of the valid rollouts of each task, by task id, between 0 and 1."""
        for task_id, values in scores.items():
            if values:
                before = self._success.get(task_id, fmean(values))
                self._success[task_id] = self._decay * before + (1 - self._decay) * fmean(values)

    def state_dict(self) -> dict[str, Any]:
        """The number of proposals, and expected success by task, as plain JSON values."""
        return {"proposals": self._proposals, "success": dict(self._success)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._proposals, self._success = int(state["proposals"]), dict(state["success"])

    def _key(self, success: float, draw: random.Random) -> float:
        """Its order is a draw without replacement: log-weight plus Gumbel noise (Kool et al. 2019)."""
        noise = -math.log(-math.log(min(max(draw.random(), 1e-300), 1 - 1e-16)))
        return -abs(success - self._target) / self._temperature + noise
