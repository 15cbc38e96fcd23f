"""Optimal token baseline: one baseline per position, weighted by how much each rollout moves the gradient there."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.compat import Compat, quirks
from palestra.training.advantages.groups import EQUAL, paired
from palestra.training.advantages.returns import discounted_returns, positions, rows_by_position
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import FloatArray


def optimal_token_baseline(table: StepTable, *, zero_tail: bool = False, compat: Compat = None) -> FloatArray:
    """A_it = G_it - B_t, B_t = sum_j W_jt G_jt / sum_j W_jt, W_jt = sum over s <= t of w_js.

    G_it is the sum of rewards from decision t on, j the rollouts of the task that have a decision t. w is the
    column `energy`, 1 - 2 p + sum p^2 summed over the decision's tokens: the squared norm of the score function of
    a softmax. For a table whose rows are single tokens this is the token form. With truncated importance weights
    multiply `energy` by their squares. `zero_tail`: no baseline at positions that a single rollout reaches. Source:
    verl core_algos.py compute_multi_turn_optimal_token_baseline_advantage.

    Departures: a rollout alone in its group gets 0, not its returns (quirk lone-raw).

    Returns float32 (S,). Raises ValueError without `energy`.
    """
    asked = quirks(compat, ["lone-raw"])
    valid = table.rollout_valid()[table.rollout]
    returns = discounted_returns(table, 1.0)
    weights = np.where(valid, _cumulative(table, table.extra("energy")), 0.0)
    place = paired(table.group, positions(table))
    energy = np.bincount(place, weights)
    energy[energy == 0] = 1.0
    baseline = np.bincount(place, weights * np.where(valid, returns, 0.0)) / energy
    alone = np.bincount(table.rollout_groups(), table.rollout_valid())[table.group] <= 1
    reached_by_one = np.bincount(place, valid)[place] <= 1
    advantages = np.where(zero_tail & reached_by_one, returns, returns - baseline[place])
    advantages = np.where(np.abs(advantages) > EQUAL * np.maximum(np.abs(returns), 1.0), advantages, 0.0)
    advantages = np.where(alone, returns if "lone-raw" in asked else 0.0, advantages)
    return np.where(valid, advantages, 0.0).astype(np.float32)


def _cumulative(table: StepTable, values: Float64Array) -> Float64Array:
    """Sum of `values` up to each decision within its rollout, shape (S,)."""
    running = np.zeros(int(table.rollout.max(initial=-1)) + 1)
    result = np.empty(len(table))
    for rows in rows_by_position(table):
        running[table.rollout[rows]] += values[rows]
        result[rows] = running[table.rollout[rows]]
    return result
