"""VCPO's baseline: the one of least variance, by how much each rollout moves the policy."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.groups import EQUAL, group_stats
from palestra.training.table import StepTable
from palestra.trajectories.model import FloatArray


def vcpo(table: StepTable, *, by_length: bool = False) -> FloatArray:
    """A_i = R_i - sum_j W_j R_j / sum_j W_j, W_j = |grad log p_j|^2 [/ L_j^2], the same for every decision of i.

    R_i is the rollout's score, j the valid rollouts of its task, L_j its sampled tokens (`by_length`: gradients are of
    means over tokens). Pair it with `scale_by_ess` of a run. Source: mit-han-lab/vcpo README and staleness_utils.py
    compute_opob_baseline; with exact norms and importance ratios see `losses.off_policy_baseline`.

    Departures: |grad log p_j|^2 is the column `energy`, summed over the rollout: the squared norm of the gradient in
    the logits, not in the weights, which would take a backward pass per rollout. Importance ratios are left to a
    `correction`. A rollout alone in its group gets 0.

    Returns float32 (S,). Raises ValueError without `energy`.
    """
    scores, group, valid = table.scores(), table.rollout_groups(), table.rollout_valid()
    size = len(scores)
    norms = np.bincount(table.rollout, table.extra("energy"), size)
    if by_length:
        norms = norms / np.maximum(np.bincount(table.rollout, table.tokens, size), 1) ** 2
    weighted = group_stats(scores, group, np.where(valid, np.maximum(norms, EQUAL), 0.0))
    informative = group_stats(scores, group, valid.astype(np.float64)).informative[group] & valid
    return np.where(informative, scores - weighted.mean[group], 0.0)[table.rollout].astype(np.float32)
