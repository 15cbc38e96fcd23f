"""State RLOO: a turn-level baseline that is unbiased."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.groups import EQUAL, paired
from palestra.training.advantages.returns import discounted_returns
from palestra.training.advantages.rloo import rollout_rloo
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import FloatArray


def state_rloo(table: StepTable, *, gamma: float = 0.95, step_weight: float = 1.0) -> FloatArray:
    """A_it = A^RLOO_i + w * (G_it - mean of G over decisions of *other* rollouts at the same anchor).

    G is the discounted return. GiGPO's group mean holds the decision itself and, in a loop, later visits of the same
    rollout, which depend on the action taken; here the baseline of a decision depends on other rollouts alone, so
    it is unbiased given the state. 0 for the second part where no other rollout was in the state. Our own, after
    RLOO (arXiv:2402.14740) and GiGPO (arXiv:2505.10978).

    Returns float32 (S,).
    """
    returns = discounted_returns(table, gamma)
    step = _against_others(table, returns)
    return (rollout_rloo(table)[table.rollout] + step_weight * step).astype(np.float32)


def _against_others(table: StepTable, returns: Float64Array) -> Float64Array:
    counted = table.rollout_valid()[table.rollout] & (table.anchor >= 0)
    values = np.where(counted, returns, 0.0)
    state = paired(table.group, table.anchor)
    visit = paired(state, table.rollout)
    total = np.bincount(state, values)[state] - np.bincount(visit, values)[visit]
    others = np.bincount(state, counted)[state] - np.bincount(visit, counted)[visit]
    centred = values - total / np.maximum(others, 1)
    real = counted & (others > 0) & (np.abs(centred) > EQUAL * np.maximum(np.abs(values), 1.0))
    return np.where(real, centred, 0.0)
