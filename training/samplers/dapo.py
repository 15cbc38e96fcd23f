"""DAPO's dynamic sampling: groups without spread teach nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from palestra.training.advantages.groups import EQUAL, group_stats
from palestra.training.samplers.fixed import FixedGroups
from palestra.training.samplers.sampler import Budget, Draw, Group, TaskSampler, new_groups
from palestra.training.table import StepTable
from palestra.trajectories.model import BoolArray


def informative_rows(table: StepTable, *, min_std: float = 0.0, keep_lone: bool = False) -> BoolArray:
    """Rows of valid rollouts whose group's scores have a (population) deviation above `min_std`, bool (S,).

    Sample on until enough groups have such rows. `keep_lone` keeps a rollout alone in its group, for estimators that
    need no group. Source: Yu et al. 2025 (DAPO), arXiv:2503.14476; with `min_std` 0.3 the filter of
    UI-S1 on the returns of the first step.

    Departures: DAPO's code keeps lone rollouts; equal to 1e-9 of their size is equal.
    """
    group, valid = table.rollout_groups(), table.rollout_valid()
    stats = group_stats(table.scores(), group, valid.astype(np.float64), unbiased=False)
    lone = keep_lone & (stats.count > 0) & (stats.count <= 1 + EQUAL)
    kept = (stats.informative & (stats.std > min_std)) | lone
    return np.asarray(kept[table.group] & valid[table.rollout])


class DynamicSampling(FixedGroups):
    """Play on until `budget.groups` groups have a spread of scores above `min_std`, and train on those alone.

    At most `max_rounds` times the budget is played; then what there is must do, and where no group has spread all
    are kept. Source: Yu et al. 2025 (DAPO), arXiv:2503.14476, section 3.2; code verl recipe/dapo.

    Departures: a round plays as many groups as are missing, not a full batch; the code raises at the end.
    """

    def __init__(self, tasks: TaskSampler, *, min_std: float = 0.0, max_rounds: int = 4) -> None:
        super().__init__(tasks)
        self._min_std, self._max_rounds = min_std, max_rounds

    def propose(self, budget: Budget, played: Sequence[Group]) -> list[Draw]:
        """What is missing."""
        missing = budget.groups - len(self._informative(played))
        allowed = self._max_rounds * budget.groups - len(played)
        count = min(missing, allowed)
        return new_groups(self._tasks.propose(count), budget.group_size, played) if count > 0 else []

    def weights(self, budget: Budget, played: Sequence[Group]) -> dict[str, float]:
        """Groups with spread, the first `budget.groups` of them."""
        kept = self._informative(played)[: budget.groups] or list(played)
        return {group.name: 1.0 for group in kept}

    def _informative(self, played: Sequence[Group]) -> list[Group]:
        return [g for g in played if g.spread > max(self._min_std, EQUAL)]
