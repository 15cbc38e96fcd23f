"""DAPO's dynamic sampling: groups without spread teach nothing."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.groups import EQUAL, group_stats
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
