"""Returns: rewards carried backwards through the decisions of each rollout.

Works on positions, not on time stamps: first decisions, second decisions, and so on, each an array of rows with
every rollout at most once, so that a recursion over time is one numpy operation per position. Linear in memory.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import BoolArray, IntArray

Rows = npt.NDArray[np.intp]


def rows_by_position(table: StepTable) -> list[Rows]:
    """Row indices of the first decisions, of the second decisions, ...; (S,) in all."""
    position = positions(table)
    order = np.argsort(position, kind="stable")
    return np.split(order, np.cumsum(np.bincount(position))[:-1])


def positions(table: StepTable) -> IntArray:
    """How many decisions of the same rollout came before, shape (S,)."""
    order = table.time_order()
    lengths = np.bincount(table.rollout)
    start = np.repeat(np.cumsum(lengths) - lengths, lengths)
    result = np.empty(len(order), np.int32)
    result[order] = np.arange(len(order)) - start
    return result


def discounted_returns(table: StepTable, gamma: float) -> Float64Array:
    """G_t = r_t + gamma * G_(t+1) within each rollout, in time order; shape (S,)."""
    return carried_returns(table, gamma, np.ones(len(table), np.bool_))


def carried_returns(table: StepTable, gamma: float, carries: BoolArray) -> Float64Array:
    """G_t = r_t + gamma * G_(t+1) where decision t `carries` what comes after it, else r_t; shape (S,)."""
    ahead = np.zeros(int(table.rollout.max(initial=-1)) + 1)
    returns = np.empty(len(table))
    for rows in reversed(rows_by_position(table)):
        rollouts = table.rollout[rows]
        later = np.where(carries[rows], ahead[rollouts], 0.0)
        returns[rows] = table.reward[rows] + gamma * later
        ahead[rollouts] = returns[rows]
    return returns


def next_rows(table: StepTable) -> Rows:
    """Row of the next decision of the same rollout, shape (S,); -1 for the last one."""
    following = np.full(len(table), -1, np.intp)
    order = table.time_order()
    same = table.rollout[order[:-1]] == table.rollout[order[1:]]
    following[order[:-1][same]] = order[1:][same]
    return following


def rollout_shares(table: StepTable) -> Float64Array:
    """Weights that count every valid rollout once, whatever its number of decisions; shape (S,)."""
    counted = table.rollout_valid()[table.rollout]
    return np.where(counted, 1.0 / np.maximum(np.bincount(table.rollout), 1)[table.rollout], 0.0)


def token_counts(table: StepTable) -> Float64Array:
    """Weights that count every token of a valid rollout once; shape (S,)."""
    return np.where(table.rollout_valid()[table.rollout], table.tokens, 0).astype(np.float64)
