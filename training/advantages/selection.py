"""Which rollouts of a group to train: a choice made on advantages."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from palestra.training.table import StepTable
from palestra.trajectories.model import BoolArray, FloatArray


def largest_variance(values: npt.NDArray[np.float64], count: int) -> BoolArray:
    """The `count` of `values` (n,) with the largest variance, bool (n,): some of the lowest and some of the highest.

    Whatever is chosen, a value in the middle exchanged for one outside makes the variance no smaller, so only the
    splits into lowest and highest are tried.
    """
    order = np.argsort(values, kind="stable")
    count = min(count, len(values))
    splits = [np.r_[order[:low], order[len(order) - (count - low) :]] for low in range(count + 1)]
    best = max(splits, key=lambda chosen: float(np.var(values[chosen])) if len(chosen) else 0.0)
    kept = np.zeros(len(values), np.bool_)
    kept[best] = True
    return kept


def d3s(advantages: FloatArray, table: StepTable, *, share: float = 0.5) -> FloatArray:
    """0 but for the `share` of the valid rollouts of each group whose mean advantages vary most.

    experimental: the sample half of D3S, of which the abstract alone was at hand (for tokens see the loss's
    `token_share`); that a rollout is judged by the mean over its decisions is assumed. Raises ValueError for a share
    outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is above 0 and at most 1, got {share}")
    groups, valid = table.rollout_groups(), table.rollout_valid()
    rows = np.bincount(table.rollout, minlength=len(valid))
    mean = np.bincount(table.rollout, advantages, len(valid)) / np.maximum(rows, 1)
    kept = np.zeros(len(valid), np.bool_)
    for group in np.unique(groups[valid]):
        members = np.flatnonzero((groups == group) & valid)
        kept[members] = largest_variance(mean[members], math.ceil(share * len(members) - 1e-9))
    return np.where(kept[table.rollout], advantages, 0.0).astype(np.float32)
