"""Groups of one size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palestra.training.samplers.sampler import Budget, Draw, Group, TaskSampler, by_task, new_groups


class FixedGroups:
    """`budget.groups` tasks, `budget.group_size` rollouts of each, all of which are trained on.

    Allocators that do more begin with this one.
    """

    def __init__(self, tasks: TaskSampler) -> None:
        self._tasks = tasks

    def propose(self, budget: Budget, played: Sequence[Group]) -> list[Draw]:
        """Everything at once."""
        if played:
            return []
        return new_groups(self._tasks.propose(budget.groups), budget.group_size)

    def weights(self, budget: Budget, played: Sequence[Group]) -> dict[str, float]:
        """Every group counts once."""
        return {group.name: 1.0 for group in played}

    def observe(self, played: Sequence[Group]) -> None:
        """Tell the task sampler."""
        self._tasks.observe(by_task(played))

    def state_dict(self) -> dict[str, Any]:
        """That of the task sampler."""
        return {"tasks": self._tasks.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._tasks.load_state_dict(state["tasks"])
