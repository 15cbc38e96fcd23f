"""GAE: advantages from a critic's values."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.compat import Compat, quirks
from palestra.training.advantages.groups import whitened
from palestra.training.advantages.returns import rollout_shares, rows_by_position, token_counts
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import FloatArray


def gae(
    table: StepTable, *, gamma: float = 1.0, lam: float = 0.95, eps: float = 1e-8, compat: Compat = None
) -> FloatArray:
    """A_t = d_t + gamma * lam * A_(t+1), d_t = r_t + gamma * V_(t+1) - V_t, then normalised over the batch.

    Needs the column `value` (V_t, a critic's estimate before decision t); V is 0 after the last decision. Recorded
    rollouts have no such column: there is no critic here, so it is for tables that bring one. Source: Schulman
    et al. 2015, arXiv:1506.02438; code verl core_algos.py compute_gae_advantage_return.

    Departures: every rollout counts once in mean and variance, not every token (quirk token-statistics).

    Returns float32 (S,). Raises MissingColumnError without `value`.
    """
    asked = quirks(compat, ["token-statistics"])
    weights = token_counts(table) if "token-statistics" in asked else rollout_shares(table)
    return whitened(generalised_advantages(table, gamma=gamma, lam=lam), weights, eps=eps).astype(np.float32)


def generalised_advantages(table: StepTable, *, gamma: float, lam: float) -> Float64Array:
    """GAE before the normalisation, shape (S,)."""
    values = table.extra("value")
    size = int(table.rollout.max(initial=-1)) + 1
    ahead, value_ahead = np.zeros(size), np.zeros(size)
    advantages = np.empty(len(table))
    for rows in reversed(rows_by_position(table)):
        rollouts = table.rollout[rows]
        delta = table.reward[rows] + gamma * value_ahead[rollouts] - values[rows]
        advantages[rows] = delta + gamma * lam * ahead[rollouts]
        ahead[rollouts], value_ahead[rollouts] = advantages[rows], values[rows]
    return advantages
