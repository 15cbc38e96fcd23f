"""REINFORCE++: returns, normalised over the whole batch."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.compat import Compat, quirks
from palestra.training.advantages.groups import normalised, whitened
from palestra.training.advantages.returns import carried_returns, next_rows, rollout_shares, token_counts
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import BoolArray, FloatArray


def reinforce_plus_plus(
    table: StepTable, *, gamma: float = 1.0, eps: float = 1e-8, compat: Compat = None
) -> FloatArray:
    """A_it = (G_it - mean) / sqrt(var + eps), G_it = r_it + gamma * G_i(t+1), mean and var over the batch.

    Source: Hu 2025, arXiv:2501.03262; code verl core_algos.py compute_reinforce_plus_plus_outcome_advantage.

    Departures: every rollout counts once in mean and var, not every token (quirk token-statistics); returns run
    over the whole rollout, where the code starts them anew at every masked token, so that turns before an
    observation get nothing (reset-at-gaps: there, a gap between consecutive values of `turn`).

    Returns float32 (S,).
    """
    asked = quirks(compat, ["token-statistics", "reset-at-gaps"])
    carries = _contiguous(table) if "reset-at-gaps" in asked else np.ones(len(table), np.bool_)
    returns = carried_returns(table, gamma, carries)
    return whitened(returns, _weights(table, asked), eps=eps).astype(np.float32)


def reinforce_plus_plus_baseline(table: StepTable, *, eps: float = 1e-8, compat: Compat = None) -> FloatArray:
    """A_i = x_i / sqrt(var + eps) about the batch mean, x_i = R_i - mean_g R.

    R_i is the rollout's score, g the rollouts of its task, mean and var of x over the batch. Source: Hu 2025,
    arXiv:2501.03262; code verl core_algos.py compute_reinforce_plus_plus_baseline_outcome_advantage.

    Departures: every rollout counts once in mean and var, not every token (quirk token-statistics); group means
    are over rollouts, not step rows (row-statistics, in verl-agent); a rollout alone in its group has x = 0, not
    its raw score (lone-raw).

    Returns float32 (S,).
    """
    asked = quirks(compat, ["token-statistics", "row-statistics", "lone-raw"])
    rows = np.bincount(table.rollout).astype(np.float64)
    centred = normalised(
        table.scores(),
        table.rollout_groups(),
        table.rollout_valid(),
        norm="none",
        weights=rows if "row-statistics" in asked else np.ones_like(rows),
        lone_raw="lone-raw" in asked,
    )
    return whitened(centred[table.rollout], _weights(table, asked), eps=eps).astype(np.float32)


def _weights(table: StepTable, asked: frozenset[str]) -> Float64Array:
    return token_counts(table) if "token-statistics" in asked else rollout_shares(table)


def _contiguous(table: StepTable) -> BoolArray:
    following = next_rows(table)
    return np.asarray(table.turn[following] == table.turn + 1)
