"""GiGPO: credit for single decisions from rollouts that met the same state."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.groups import Norm, normalised
from palestra.training.advantages.grpo import rollout_advantages
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import FloatArray, IntArray


def gigpo(
    table: StepTable, *, gamma: float = 0.95, step_weight: float = 1.0, norm: Norm = "std", eps: float = 1e-6
) -> FloatArray:
    """A_it = A^E_i + w * A^S_it.

    A^E is GRPO's advantage of the rollout. A^S compares the discounted return G_it = r_it + gamma * G_i(t+1) with
    the returns of all decisions of the same task that were taken at the same anchor, at any turn:
    A^S_it = (G_it - mean) / (std + eps). Source: Feng et al. 2025, arXiv:2505.10978, equations 3-8; code
    langfengQ/verl-agent gigpo/core_gigpo.py.

    Departures from the authors' code: episode statistics are over rollouts, not step rows; a rollout alone in its
    group gets 0 and not its raw score; groups of equal values get exactly 0, not rounding noise over eps; rows may
    come in any order.

    Returns float32 (S,). Unknown anchors get A^S = 0.
    """
    counted = table.rollout_valid()[table.rollout] & (table.anchor >= 0)
    step = normalised(discounted_returns(table, gamma), _state_groups(table), counted, norm=norm, eps=eps)
    episode = rollout_advantages(table, norm=norm, eps=eps)[table.rollout]
    return (episode + step_weight * step).astype(np.float32)


def discounted_returns(table: StepTable, gamma: float) -> Float64Array:
    """G_t = r_t + gamma * G_(t+1) within each rollout, in time order; shape (S,)."""
    order = table.time_order()
    rollout, rewards = table.rollout[order], table.reward[order]
    lengths = np.bincount(rollout)
    position = np.arange(len(order)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    padded = np.zeros((len(lengths), int(lengths.max(initial=0)) + 1))
    padded[rollout, position] = rewards
    for t in range(padded.shape[1] - 2, -1, -1):
        padded[:, t] += gamma * padded[:, t + 1]
    returns = np.empty(len(order))
    returns[order] = padded[rollout, position]
    return returns


def _state_groups(table: StepTable) -> IntArray:
    """Dense ids of (task group, anchor); unknown anchors share one per group and are masked by the caller."""
    keys = np.stack([table.group, table.anchor], axis=1)
    _, ids = np.unique(keys, axis=0, return_inverse=True)
    return ids.reshape(-1).astype(np.int32)
