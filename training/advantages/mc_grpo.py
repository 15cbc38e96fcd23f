"""MC-GRPO: GRPO around the median, for groups of few rollouts."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.compat import Compat, quirks
from palestra.training.advantages.groups import group_medians, group_stats
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import BoolArray, FloatArray, IntArray


def mc_grpo(
    table: StepTable, *, rescale: bool = True, eps: float = 1e-3, compat: Compat = None
) -> FloatArray:
    """A_i = c_g * (R_i - median_g R) / (MAD_g + eps), c_g = n_g / (rollouts of g off the median).

    R_i is the rollout's score, g the n_g rollouts of its task, median the lower one, MAD the median of the absolute
    deviations from it. Sample one rollout more than is trained: the median's own advantage is 0. `rescale` False
    leaves out c_g. Source: lotusroot-kim/MC-GRPO src/open_r1/grpo_trainer_gsm.py (which drops one rollout at the
    median from the batch; here its advantage is 0, so the denominator of the loss is what differs).

    Departures: where more than half of a group has the median score, as is usual with rewards of 0 and 1, MAD is 0
    and the code divides by eps: advantages of a thousand (quirk tiny-scale). Here the mean absolute deviation takes
    the place of a MAD of 0.

    Returns float32 (S,).
    """
    asked = quirks(compat, ["tiny-scale"])
    scores, group, valid = table.scores(), table.rollout_groups(), table.rollout_valid()
    deviation = np.where(valid, scores - group_medians(scores, group, valid)[group], 0.0)
    scale = group_medians(np.abs(deviation), group, valid)
    if "tiny-scale" not in asked:
        scale = np.where(scale > 0, scale, _mean_absolute(deviation, group, valid))
    stats = group_stats(scores, group, valid.astype(np.float64))
    advantages = np.where(stats.informative[group], deviation / (scale[group] + eps), 0.0)
    if rescale:
        off = np.bincount(group, valid & (np.abs(advantages) > 1e-6), len(stats.count))
        advantages *= (stats.count / np.maximum(off, 1))[group]
    return advantages[table.rollout].astype(np.float32)


def _mean_absolute(deviation: Float64Array, group: IntArray, valid: BoolArray) -> Float64Array:
    count = np.bincount(group, valid)
    return np.bincount(group, np.abs(deviation)) / np.maximum(count, 1)
