"""Returns: rewards carried backwards through the decisions of each rollout.

Works on positions, not on time stamps: first decisions, second decisions, and so on, each an array of rows with
every rollout at most once, so that a recursion over time is one numpy operation per position. Linear in memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from palestra.training.advantages.groups import paired
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
    """G_t = r_t + gamma * G_(t+1) within each rollout, in time order; shape (S,).

    Where the table has a column `branch`, the rule for sub-agents: a branch is one action of the decision that started
    it, the agent's last one before the branch's first. With R_b the discounted sum of a branch's own rewards,

        agent    G_t = r_t + sum of R_b over the branches that t started + gamma * G_(t+1)
        branch   G_k = r_k + gamma * G_(k+1), and after its last decision comes the agent's decision t+1

    so that the agent's returns do not depend on how many decisions a sub-agent took, and a sub-agent has its share in
    what came of its work. Ours; no published estimator knows branches.
    """
    inside = _in_branch(table)
    if not inside.any():
        return carried_returns(table, gamma, np.ones(len(table), np.bool_))
    return _with_branches(table, gamma, inside)


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


def threads(table: StepTable) -> IntArray:
    """Ids of the conversations: the agent's own of each rollout, and each of its branches; shape (S,)."""
    return paired(table.rollout, table.extra("branch")) if _in_branch(table).any() else table.rollout


def _in_branch(table: StepTable) -> BoolArray:
    branch = table.extras.get("branch")
    return np.zeros(len(table), np.bool_) if branch is None else np.asarray(branch >= 0)


def _with_branches(table: StepTable, gamma: float, inside: BoolArray) -> Float64Array:
    apart = replace(table, rollout=threads(table), extras={})
    own = carried_returns(apart, gamma, np.ones(len(table), np.bool_))
    starter, first = _starters(table, inside), inside & (positions(apart) == 0)
    reward = table.reward.copy()
    begun = np.flatnonzero(first & (starter >= 0))
    np.add.at(reward, starter[begun], own[begun])
    returns = carried_returns(replace(apart, reward=reward), gamma, np.ones(len(table), np.bool_))
    following = next_rows(table)
    after = np.where(starter >= 0, following[starter], -1)
    steps_left = np.bincount(apart.rollout)[apart.rollout] - positions(apart)
    tail = np.where(after >= 0, returns[after] * gamma**steps_left, 0.0)
    return np.where(inside, own + tail, returns)


def _starters(table: StepTable, inside: BoolArray) -> Rows:
    """Row of the agent's last decision before each branch began, for the branch's rows; -1 elsewhere."""
    order = table.time_order()
    last = np.full(len(table), -1, np.intp)
    last[order] = np.maximum.accumulate(np.where(inside[order], -1, np.arange(len(order))))
    found = np.where(last >= 0, order[last], -1)
    found = np.where((found >= 0) & (table.rollout[found] == table.rollout), found, -1)
    opening = np.full(int(threads(table).max(initial=-1)) + 1, -1, np.intp)
    backwards = order[::-1]
    opening[threads(table)[backwards]] = backwards
    return np.where(inside, found[opening[threads(table)]], -1)


def next_rows(table: StepTable) -> Rows:
    """Row of the next decision of the same conversation, shape (S,); -1 for the last one."""
    thread = threads(table)
    following = np.full(len(table), -1, np.intp)
    order = np.lexsort((table.turn, thread))
    same = thread[order[:-1]] == thread[order[1:]]
    following[order[:-1][same]] = order[1:][same]
    return following


def rollout_shares(table: StepTable) -> Float64Array:
    """Weights that count every valid rollout once, whatever its number of decisions; shape (S,)."""
    counted = table.rollout_valid()[table.rollout]
    return np.where(counted, 1.0 / np.maximum(np.bincount(table.rollout), 1)[table.rollout], 0.0)


def token_counts(table: StepTable) -> Float64Array:
    """Weights that count every token of a valid rollout once; shape (S,)."""
    return np.where(table.rollout_valid()[table.rollout], table.tokens, 0).astype(np.float64)
