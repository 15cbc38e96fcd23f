"""GPG: centred scores, made larger where part of the batch has no gradient."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.compat import Compat, quirks
from palestra.training.advantages.groups import normalised
from palestra.training.table import StepTable
from palestra.trajectories.model import FloatArray


def gpg(table: StepTable, *, f_norm: float = 1.0, compat: Compat = None) -> FloatArray:
    """A_i = alpha * (R_i - mean_g R) / f_norm, alpha = B / (rollouts with a gradient).

    R_i is the rollout's score, g the rollouts of its task, B the valid rollouts of the batch. Without alpha, groups
    of equal scores would shrink the step. Source: Chu et al. 2025, arXiv:2504.02546; code verl
    core_algos.py compute_gpg_outcome_advantage.

    Departures: a rollout has a gradient where its advantage is not 0; the code counts scores that are not 0, so a
    batch of wholly solved groups counts as full (quirk nonzero-scores). A rollout alone in its group gets 0, not
    its raw score (lone-raw).

    Returns float32 (S,).
    """
    asked = quirks(compat, ["nonzero-scores", "lone-raw"])
    scores, valid = table.scores(), table.rollout_valid()
    group = table.rollout_groups()
    centred = normalised(scores, group, valid, norm="none", lone_raw="lone-raw" in asked)
    counted = scores if "nonzero-scores" in asked else centred
    alpha = valid.sum() / max(np.count_nonzero(counted[valid]), 1)
    advantages = alpha * centred / f_norm
    return np.asarray(advantages[table.rollout], np.float32)
