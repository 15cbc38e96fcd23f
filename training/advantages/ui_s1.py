"""UI-S1: semi-online rollouts along an expert's path, compared at the same turn."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.compat import Compat
from palestra.training.advantages.groups import Norm, normalised, paired
from palestra.training.advantages.grpo import rollout_advantages
from palestra.training.advantages.returns import rows_by_position
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import FloatArray


def ui_s1(
    table: StepTable,
    *,
    gamma: float = 0.5,
    episode_weight: float = 1.0,
    step_weight: float = 1.0,
    norm: Norm = "std",
    eps: float = 1e-6,
    compat: Compat = None,
) -> FloatArray:
    """A_it = w_e * A^E_i + w_s * A^S_it; A^S compares the returns of the rollouts of a task at the same turn.

    Needs the column `matched`: whether the action was the expert's. Where it was not, the rollout went on from the
    expert's step, so credit ends there: G_t = r_t, and nothing is carried to turns before. A^E is GRPO's advantage.
    Rollouts have it in worlds that go along an expert's path, such as web-offline.
    Source: X-PLUG/MobileAgent UI-S1/uis1/core_uis1.py.

    Departures: those of `gigpo` (quirks row-statistics, lone-raw).

    Returns float32 (S,). Raises MissingColumnError without `matched`.
    """
    episode = rollout_advantages(table, norm=norm, eps=eps, compat=compat)[table.rollout]
    counted = table.rollout_valid()[table.rollout]
    returns = matched_returns(table, gamma)
    step = normalised(returns, paired(table.group, table.turn), counted, norm=norm, eps=eps)
    return (episode_weight * episode + step_weight * step).astype(np.float32)


def matched_returns(table: StepTable, gamma: float) -> Float64Array:
    """Discounted returns that never cross a decision that was not `matched`, shape (S,)."""
    matched = table.extra("matched")
    ahead = np.zeros(int(table.rollout.max(initial=-1)) + 1)
    returns = np.empty(len(table))
    for rows in reversed(rows_by_position(table)):
        rollouts = table.rollout[rows]
        returns[rows] = table.reward[rows] + np.where(matched[rows], gamma * ahead[rollouts], 0.0)
        ahead[rollouts] = np.where(matched[rows], returns[rows], 0.0)
    return returns
