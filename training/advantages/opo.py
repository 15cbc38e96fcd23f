"""OPO: a baseline that weighs rollouts by their length."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.compat import Compat, quirks
from palestra.training.advantages.groups import EQUAL, group_stats
from palestra.training.table import StepTable
from palestra.trajectories.model import FloatArray


def opo(table: StepTable, *, compat: Compat = None) -> FloatArray:
    """A_i = R_i - sum_j L_j R_j / sum_j L_j, the same for every decision of rollout i.

    R_i is the rollout's score, L_i its sampled tokens, j the rollouts of its task. The baseline has least variance
    where the squared norm of a rollout's gradient grows with its length. Source: Hao et al. 2025, arXiv:2505.23585;
    code verl core_algos.py compute_opo_outcome_advantage.

    Departures: a rollout alone in its group gets 0, not its raw score (quirk lone-raw).

    Returns float32 (S,).
    """
    asked = quirks(compat, ["lone-raw"])
    scores, group, valid = table.scores(), table.rollout_groups(), table.rollout_valid()
    tokens = np.bincount(table.rollout, table.tokens, len(scores))
    weighted = group_stats(scores, group, np.where(valid, tokens, 0.0))
    counted = group_stats(scores, group, valid.astype(np.float64))
    alone = counted.count[group] <= 1 + EQUAL
    lone = scores if "lone-raw" in asked else np.zeros_like(scores)
    others = np.where(counted.informative[group], scores - weighted.mean[group], 0.0)
    return np.where(valid, np.where(alone, lone, others), 0.0)[table.rollout].astype(np.float32)
