"""GRPO: the score of a rollout against the other rollouts of its task."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.compat import Compat, quirks
from palestra.training.advantages.groups import Norm, group_stats, normalised
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import FloatArray


def grpo(table: StepTable, *, norm: Norm = "std", eps: float = 1e-6, compat: Compat = None) -> FloatArray:
    """A_i = (R_i - mean_g R) / (std_g R + eps), the same for every decision of rollout i.

    R_i is the rollout's score, g the rollouts of its task. norm "none" leaves out the division (Dr.GRPO).
    Source: Shao et al. 2024, arXiv:2402.03300, section 4.1.2; code verl core_algos.py
    compute_grpo_outcome_advantage and its _vectorized form.

    Departures from common code: statistics are over rollouts, however many rows each has (quirk row-statistics);
    a rollout alone in its group gets 0 and not its raw score (lone-raw); groups of equal scores get exactly 0;
    the deviation has no floor (std-floor, of verl's vectorized form).

    Returns float32 (S,).
    """
    asked = quirks(compat, ["row-statistics", "lone-raw", "std-floor"])
    if "std-floor" in asked and norm == "std":
        return _floored(table, eps, lone_raw="lone-raw" in asked)
    return rollout_advantages(table, norm=norm, eps=eps, compat=compat)[table.rollout].astype(np.float32)


def dr_grpo(table: StepTable) -> FloatArray:
    """A_i = R_i - mean_g R: GRPO without the division by the deviation.

    R_i is the rollout's score, g the rollouts of its task. Meant for a loss whose denominator is a constant, not a
    length (aggregation "token-sum"). Source: Liu et al. 2025, arXiv:2503.20783.

    Returns float32 (S,).
    """
    return grpo(table, norm="none")


def rollout_advantages(
    table: StepTable, *, norm: Norm, eps: float = 1e-6, compat: Compat = None
) -> Float64Array:
    """GRPO advantage per rollout, shape (number of rollouts,)."""
    asked = quirks(compat, ["row-statistics", "lone-raw", "std-floor"])
    return normalised(
        table.scores(),
        table.rollout_groups(),
        table.rollout_valid(),
        norm=norm,
        eps=eps,
        weights=rollout_weights(table, by_row="row-statistics" in asked),
        lone_raw="lone-raw" in asked,
    )


def rollout_weights(table: StepTable, *, by_row: bool) -> Float64Array:
    """How often each rollout enters a statistic, shape (number of rollouts,): once, or once per row."""
    rows = np.bincount(table.rollout).astype(np.float64)
    return rows if by_row else np.ones_like(rows)


def _floored(table: StepTable, eps: float, *, lone_raw: bool) -> FloatArray:
    scores, group, valid = table.scores(), table.rollout_groups(), table.rollout_valid()
    centred = normalised(scores, group, valid, norm="none", lone_raw=lone_raw)
    stats = group_stats(scores, group, valid.astype(np.float64))
    several = stats.count[group] > 1
    scale = np.where(several, np.sqrt(np.maximum(stats.std[group] ** 2, eps)) + eps, 1.0)
    return (centred / scale)[table.rollout].astype(np.float32)
