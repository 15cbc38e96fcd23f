"""Pass@k-GRPO: only the best rollout of a group is credited, by its lead over the second."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.groups import Norm, group_stats
from palestra.training.table import StepTable
from palestra.trajectories.model import FloatArray


def passk_grpo(table: StepTable, *, norm: Norm = "std", eps: float = 1e-6) -> FloatArray:
    """A_best = (R_best - R_second) / (std_g R + eps) for the best rollout of each task, 0 for all others.

    The gradient of the expected maximum of the group's scores. norm "none" leaves out the division. Source: Tang
    et al. 2025, arXiv:2503.19595; code verl core_algos.py compute_grpo_passk_outcome_advantage.

    Departures: a group of one gives 0 where the code raises. Ties for the best give 0 in both.

    Returns float32 (S,).
    """
    scores, group, valid = table.scores(), table.rollout_groups(), table.rollout_valid()
    stats = group_stats(scores, group, valid.astype(np.float64))
    kept = np.flatnonzero(valid)
    order = kept[np.lexsort((scores[kept], group[kept]))]  # by group, the best last
    last = np.flatnonzero(np.diff(group[order], append=-1))
    best = order[last[stats.informative[group[order[last]]]]]
    second = order[last[stats.informative[group[order[last]]]] - 1]
    scale = stats.std[group[best]] + eps if norm == "std" else 1.0
    advantages = np.zeros(len(scores))
    advantages[best] = (scores[best] - scores[second]) / scale
    return advantages[table.rollout].astype(np.float32)
