"""RLOO: the score of a rollout against the mean of the others."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.compat import Compat, quirks
from palestra.training.advantages.groups import EQUAL, group_stats
from palestra.training.advantages.grpo import rollout_weights
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import FloatArray


def rloo(table: StepTable, *, compat: Compat = None) -> FloatArray:
    """A_i = R_i - mean_{j != i} R_j = n / (n - 1) * (R_i - mean_g R), the same for every decision of rollout i.

    R_i is the rollout's score, n the valid rollouts of its task. Unbiased: the baseline does not depend on
    rollout i. Source: Ahmadian et al. 2024, arXiv:2402.14740; code verl core_algos.py
    compute_rloo_outcome_advantage.

    Departures: a rollout alone in its group gets 0, not its raw score (quirk lone-raw); n counts rollouts, not step
    rows, so the baseline never holds the rollout's own other rows (row-statistics, in verl-agent).

    Returns float32 (S,).
    """
    return rollout_rloo(table, compat=compat)[table.rollout].astype(np.float32)


def rollout_rloo(table: StepTable, *, compat: Compat = None) -> Float64Array:
    """RLOO advantage per rollout, shape (number of rollouts,)."""
    asked = quirks(compat, ["row-statistics", "lone-raw"])
    scores, group, valid = table.scores(), table.rollout_groups(), table.rollout_valid()
    weights = rollout_weights(table, by_row="row-statistics" in asked)
    stats = group_stats(scores, group, weights * valid)
    count, alone = stats.count[group], stats.count[group] <= 1 + EQUAL
    others = (scores - stats.mean[group]) * count / np.where(alone, 1.0, count - 1)
    lone = scores if "lone-raw" in asked else np.zeros_like(scores)
    return np.where(valid, np.where(alone, lone, np.where(stats.informative[group], others, 0.0)), 0.0)
