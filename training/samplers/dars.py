"""DARS: more rollouts for the tasks that the policy seldom solves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

from palestra.training.samplers.fixed import FixedGroups
from palestra.training.samplers.sampler import Budget, Draw, Group, TaskSampler

Schedule = Literal["equal-treatment", "hardness-weighted"]


def extra_rollouts(
    success: float,
    rollouts: int,
    max_rollouts: int,
    *,
    schedule: Schedule = "equal-treatment",
    by_std: bool = False,
) -> int:
    """How many rollouts a task gets beyond the first `rollouts`, of which a share `success` succeeded.

    A group's summed absolute advantage is n S, S = 2 p (1 - p), or 2 sqrt(p (1 - p)) for GRPO with its division
    (`by_std`); p is `success`, and half a success where there was none. Enough rollouts are added for tasks with
    p < 0.5 to reach the sum of p = 0.5 (equal-treatment), or 2 (1 - p) times it (hardness-weighted); at most
    max_rollouts - rollouts. Source: Yang et al. 2025, arXiv:2508.13755; code yangzhch6/DARS
    ray_dars_trainer.py schedule_ET and schedule_HW.

    Raises ValueError for an unknown schedule, or a share outside [0, 1].
    """
    if schedule not in get_args(Schedule):
        raise ValueError(f"schedule is one of {', '.join(get_args(Schedule))}, got {schedule!r}")
    if not 0 <= success <= 1:
        raise ValueError(f"success is a share of rollouts between 0 and 1, got {success}")
    p = success if success > 0 else 0.5 / rollouts
    if p >= 0.5:
        return 0
    weight = 2 * math.sqrt(p * (1 - p)) if by_std else 2 * p * (1 - p)
    peak = rollouts * (1.0 if by_std else 0.5)
    target = peak if schedule == "equal-treatment" else 2 * (1 - p) * peak
    wanted = (target - rollouts * weight) / weight
    return max(0, math.ceil(min(wanted, max_rollouts - rollouts)))


class DifficultyAdaptive(FixedGroups):
    """Groups of one size, then `extra_rollouts` for those of low success; groups that differ in size.

    `max_rollouts` per group, 4 times the group size by default. Groups whose scores are all equal are left out where
    others are not. Source: Yang et al. 2025 (DARS), arXiv:2508.13755; code yangzhch6/DARS ray_dars_trainer.py.
    """

    def __init__(
        self,
        tasks: TaskSampler,
        *,
        max_rollouts: int | None = None,
        schedule: Schedule = "equal-treatment",
        by_std: bool = False,
    ) -> None:
        super().__init__(tasks)
        self._max, self._schedule, self._by_std = max_rollouts, schedule, by_std

    def propose(self, budget: Budget, played: Sequence[Group]) -> list[Draw]:
        """All groups; then, once, more of the hard ones."""
        if not played:
            return super().propose(budget, played)
        if any(len(group.scores) > budget.group_size for group in played):
            return []
        extra = [(group, self._extra(budget, group)) for group in played if group.valid]
        return [Draw(group.task, group.name, count) for group, count in extra if count]

    def weights(self, budget: Budget, played: Sequence[Group]) -> dict[str, float]:
        """Groups with spread."""
        return {g.name: 1.0 for g in [g for g in played if g.spread > 0] or played}

    def _extra(self, budget: Budget, group: Group) -> int:
        most = 4 * budget.group_size if self._max is None else self._max
        success = min(max(group.success, 0.0), 1.0)
        return extra_rollouts(success, len(group.valid), most, schedule=self._schedule, by_std=self._by_std)
