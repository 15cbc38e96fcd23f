"""XRPO's allocator: the next rollout goes where it tells most."""

from __future__ import annotations

import math
from collections.abc import Sequence

from palestra.training.samplers.fixed import FixedGroups
from palestra.training.samplers.sampler import Budget, Draw, Group, TaskSampler, new_groups

_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5 % quantiles of Student's distribution with 1, 2, ... degrees of freedom."""


def half_width(deviation: float, count: int) -> float:
    """h(n) = t_(0.975, n - 1) s / sqrt(n), the half width of the 95 % interval of a mean; infinite for n < 2."""
    if count < 2:
        return math.inf
    quantile = _T975[count - 2] if count - 2 < len(_T975) else 1.96 + 2.4 / (count - 1)
    return quantile * deviation / math.sqrt(count)


class ExploreExploit(FixedGroups):
    """A first share of the budget for all tasks alike, the rest in phases by priority.

    priority of group q = h_q(n) - h_q(n + 1) + exploration * sqrt(log(1 + T) / n), n its valid rollouts, T all of
    the step's: what the next rollout narrows the interval of its mean by, and a bonus for the seldom tried. Each
    rollout of a phase goes to the highest priority, with n counted up as it is given.

    experimental: after descriptions of XRPO (in-context seeding of tasks that all fail is left out). Assumed are the
    form of the bonus, its weight, the shares, and a deviation of at least `min_std` where a group's scores are equal,
    so that they are not taken for certain.
    """

    def __init__(
        self,
        tasks: TaskSampler,
        *,
        first_share: float = 0.5,
        phases: int = 2,
        exploration: float = 0.1,
        min_std: float = 0.1,
    ) -> None:
        super().__init__(tasks)
        self._first_share, self._phases = first_share, phases
        self._exploration, self._min_std = exploration, min_std

    def propose(self, budget: Budget, played: Sequence[Group]) -> list[Draw]:
        """The first share; then one phase after another until the budget is spent."""
        first = min(max(2, round(self._first_share * budget.group_size)), budget.group_size)
        if not played:
            return new_groups(self._tasks.propose(budget.groups), first)
        left = budget.rollouts - sum(len(group.scores) for group in played)
        phase = math.ceil((budget.rollouts - first * budget.groups) / self._phases)
        return self._given(played, min(left, phase))

    def _given(self, played: Sequence[Group], rollouts: int) -> list[Draw]:
        counts = [len(group.valid) for group in played]
        given = [0] * len(played)
        for _ in range(rollouts):
            total = sum(counts)
            worth = [self._priority(g, n, total) for g, n in zip(played, counts, strict=True)]
            best = max(range(len(played)), key=lambda i: worth[i])
            counts[best] += 1
            given[best] += 1
        return [Draw(g.task, g.name, more) for g, more in zip(played, given, strict=True) if more]

    def _priority(self, group: Group, count: int, total: int) -> float:
        if count < 2:
            return math.inf
        deviation = max(group.spread, self._min_std)
        drop = half_width(deviation, count) - half_width(deviation, count + 1)
        return drop + self._exploration * math.sqrt(math.log1p(total) / count)
