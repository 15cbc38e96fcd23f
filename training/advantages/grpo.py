"""GRPO: the score of a rollout against the other rollouts of its task."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.groups import Norm, normalised
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import FloatArray


def grpo(table: StepTable, *, norm: Norm = "std", eps: float = 1e-6) -> FloatArray:
    """A_i = (R_i - mean_g R) / (std_g R + eps), the same for every decision of rollout i.

    R_i is the rollout's score, g the rollouts of its task. norm "none" leaves out the division (Dr.GRPO, Liu et al.
    2025, arXiv:2503.20783). Source: Shao et al. 2024, arXiv:2402.03300, section 4.1.2.

    Departures from common code: statistics are over rollouts, however many rows each has; a rollout alone in its
    group gets 0 and not its raw score; groups of equal scores get exactly 0.

    Returns float32 (S,).
    """
    return rollout_advantages(table, norm=norm, eps=eps)[table.rollout].astype(np.float32)


def rollout_advantages(table: StepTable, *, norm: Norm, eps: float) -> Float64Array:
    """GRPO advantage per rollout, shape (number of rollouts,)."""
    return normalised(table.scores(), table.rollout_groups(), table.rollout_valid(), norm=norm, eps=eps)
