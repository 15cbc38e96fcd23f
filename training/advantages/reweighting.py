"""Advantages changed afterwards: by confidence, by novelty, by time.

Each takes the advantages (S,) of an estimator and its table, and gives float32 (S,). Those marked experimental are
after papers whose formulas were not at hand in full, and say what is assumed.
"""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.groups import group_stats
from palestra.training.table import StepTable
from palestra.trajectories.model import FloatArray


def novelty_sharpened(
    advantages: FloatArray, table: StepTable, *, strength: float = 1.0, cap: float = 1.0
) -> FloatArray:
    """A + min(max(strength * (1 - eta), 0), cap * A) where A > 0, eta = exp(s_i - mean_g s).

    s_i is the mean log-probability of rollout i's tokens (column `logprob`, weighed by `tokens`): good rollouts that
    were unlikely gain. experimental: after XRPO; `strength` and `cap` are assumed, and that a rollout is good where
    A > 0. Raises ValueError without `logprob`.
    """
    size = len(table.scores())
    tokens = np.bincount(table.rollout, table.tokens, size)
    mean = np.bincount(table.rollout, table.extra("logprob") * table.tokens, size) / np.maximum(tokens, 1)
    groups, valid = table.rollout_groups(), table.rollout_valid()
    stats = group_stats(mean, groups, valid.astype(np.float64))
    eta = np.exp(np.where(valid, mean - stats.mean[groups], 0.0))[table.rollout]
    bonus = np.minimum(np.maximum(strength * (1.0 - eta), 0.0), cap * advantages)
    return np.where(advantages > 0, advantages + bonus, advantages).astype(np.float32)


def confidence_punished(advantages: FloatArray, table: StepTable, *, strength: float = 1.0) -> FloatArray:
    """A * (1 + strength * softplus(c)) where A < 0, c the column `log_ratio`: log(policy / reference) of the decision.

    What is wrong and grew more likely than under the reference is punished more. experimental: after ACE; softplus,
    `strength`, and c as a sum over the decision's tokens are assumed. In a training run the reference is the policy
    that it began with, one forward pass more. Raises MissingColumnError without `log_ratio`.
    """
    factor = 1.0 + strength * np.logaddexp(0.0, table.extra("log_ratio"))
    return np.where(advantages < 0, advantages * factor, advantages).astype(np.float32)


def weighted(advantages: FloatArray, table: StepTable) -> FloatArray:
    """A * w, w the column `weight`. Our own. Raises ValueError without `weight`."""
    return np.asarray(advantages * table.extra("weight"), np.float32)


def duration_weighted(advantages: FloatArray, table: StepTable) -> FloatArray:
    """A_t * d_t / mean d, d_t the seconds of the decision's actions (column `duration_s`).

    Where workers sample asynchronously, quick actions are seen more often than they are taken; weights undo it.
    experimental: the mean over the valid decisions of the batch is assumed. Raises ValueError without `duration_s`
    or for durations that are all 0.
    """
    duration = table.extra("duration_s")
    valid = table.rollout_valid()[table.rollout]
    total = float(duration[valid].sum())
    if valid.any() and total <= 0:
        raise ValueError("every duration_s is 0: weigh by duration only what took time")
    return np.asarray(advantages * duration * (valid.sum() / max(total, 1e-12)), np.float32)
