"""GiGPO: credit for single decisions from rollouts that met the same state."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.compat import Compat
from palestra.training.advantages.groups import Norm, normalised, paired
from palestra.training.advantages.grpo import rollout_advantages
from palestra.training.advantages.returns import discounted_returns
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import FloatArray

__all__ = ["discounted_returns", "gigpo", "state_advantages"]


def gigpo(
    table: StepTable,
    *,
    gamma: float = 0.95,
    step_weight: float = 1.0,
    norm: Norm = "std",
    eps: float = 1e-6,
    compat: Compat = None,
) -> FloatArray:
    """A_it = A^E_i + w * A^S_it.

    A^E is GRPO's advantage of the rollout. A^S compares the discounted return G_it = r_it + gamma * G_i(t+1) with
    the returns of all decisions of the same task that were taken at the same anchor, at any turn:
    A^S_it = (G_it - mean) / (std + eps). Source: Feng et al. 2025, arXiv:2505.10978, equations 3-8; code
    langfengQ/verl-agent gigpo/core_gigpo.py. For anchors that are alike and not equal, name them with
    `similar_anchors` first.

    Departures from the authors' code: episode statistics are over rollouts, not step rows (quirk row-statistics); a
    rollout alone in its group gets 0 and not its raw score (lone-raw); groups of equal values get exactly 0, not
    rounding noise over eps; rows may come in any order; a failed rollout is in no statistic.

    Returns float32 (S,). Unknown anchors get A^S = 0.
    """
    episode = rollout_advantages(table, norm=norm, eps=eps, compat=compat)[table.rollout]
    step = state_advantages(table, discounted_returns(table, gamma), norm=norm, eps=eps)
    return (episode + step_weight * step).astype(np.float32)


def state_advantages(
    table: StepTable, returns: Float64Array, *, norm: Norm, eps: float = 1e-6
) -> Float64Array:
    """A^S of GiGPO: `returns` against those at the same anchor of the same task; shape (S,)."""
    counted = table.rollout_valid()[table.rollout] & (table.anchor >= 0)
    return normalised(returns, paired(table.group, table.anchor), counted, norm=norm, eps=eps)
