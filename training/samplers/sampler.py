"""What is played in a training step: which tasks (a task sampler), and how many rollouts of each (an allocator).

The trainer asks an allocator. It proposes rollouts until it is content with what came of them, round by round; says
which groups are worth training on; and learns from them. An allocator asks a task sampler for tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from palestra.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Budget:
    """What a training step is meant to play."""

    groups: int
    group_size: int

    @property
    def rollouts(self) -> int:
        """In all."""
        return self.groups * self.group_size


@dataclass(frozen=True, slots=True)
class Draw:
    """Rollouts to be played of one task, for a new group or for one that is there."""

    task: Task
    group: str
    """Names the group within the step."""
    rollouts: int


@dataclass(frozen=True, slots=True)
class Group:
    """What came of the rollouts of one group so far."""

    task: Task
    name: str
    scores: tuple[float | None, ...]
    """Of all its rollouts; None where there is no valid score, which is no zero."""

    @property
    def valid(self) -> list[float]:
        """The scores that there are."""
        return [s for s in self.scores if s is not None]

    @property
    def success(self) -> float:
        """Mean score; nan without one."""
        return float(np.mean(self.valid)) if self.valid else float("nan")

    @property
    def spread(self) -> float:
        """Population deviation of the scores; 0 without one."""
        return float(np.std(self.valid)) if self.valid else 0.0


class TaskSampler(Protocol):
    """Chooses tasks and may learn from what came of them."""

    def propose(self, count: int) -> list[Task]:
        """The next `count` tasks."""
        ...

    def observe(self, scores: Mapping[str, Sequence[float]]) -> None:
        """Scores of the valid rollouts of each task, by task id; a task whose rollouts all failed is left out."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next proposals, as plain JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        ...


class Allocator(Protocol):
    """Decides what a training step plays and trains on."""

    def propose(self, budget: Budget, played: Sequence[Group]) -> list[Draw]:
        """What to play next in this step, `played` what was so far; nothing: the step is complete.

        From the same state, the same groups must give the same proposals: an interrupted step is proposed anew.
        """
        ...

    def weights(self, budget: Budget, played: Sequence[Group]) -> dict[str, float]:
        """Names of the groups to train on, with a factor on their advantages."""
        ...

    def observe(self, played: Sequence[Group]) -> None:
        """Learn from a complete step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next proposals, as plain JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        ...


def new_groups(tasks: Sequence[Task], rollouts: int, played: Sequence[Group] = ()) -> list[Draw]:
    """A new group of `rollouts` for each task; a task that is there again gets another name, "<id>#2" and so on."""
    seen = Counter(group.task.id for group in played)
    draws = []
    for task in tasks:
        seen[task.id] += 1
        again = f"#{seen[task.id]}" if seen[task.id] > 1 else ""
        draws.append(Draw(task, f"{task.id}{again}", rollouts))
    return draws


def by_task(played: Sequence[Group]) -> dict[str, list[float]]:
    """Valid scores by task id, without tasks that have none."""
    scores: dict[str, list[float]] = {}
    for group in played:
        if group.valid:
            scores.setdefault(group.task.id, []).extend(group.valid)
    return scores
