"""ReMax: the return against the score of a greedy rollout of the same task."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.returns import discounted_returns
from palestra.training.table import StepTable
from palestra.trajectories.model import FloatArray


def remax(table: StepTable) -> FloatArray:
    """A_it = G_it - b, G_it = sum of the rewards from decision t on, b the score of a greedy rollout.

    Needs the column `baseline` (b, the same for the rows of a task). Needs no group: one rollout per task will do.
    Source: Li et al. 2023, arXiv:2310.10505; code verl core_algos.py compute_remax_outcome_advantage.

    Returns float32 (S,). Raises ValueError without `baseline`.
    """
    advantages = discounted_returns(table, 1.0) - table.extra("baseline")
    return np.where(table.rollout_valid()[table.rollout], advantages, 0.0).astype(np.float32)
