"""Group statistics: the one place in which advantages are centred and scaled."""

from __future__ import annotations

from typing import Literal

import numpy as np

from palestra.training.table import Float64Array
from palestra.trajectories.model import BoolArray, IntArray

Norm = Literal["std", "none"]


def normalised(
    values: Float64Array, group: IntArray, valid: BoolArray, *, norm: Norm, eps: float = 1e-6
) -> Float64Array:
    """(x - mean of its group) / (std of its group + eps), or only centred for norm "none"; shape of `values`.

    Statistics are over valid entries alone, with the unbiased (n-1) deviation. Entries that are invalid, alone in
    their group, or in a group of equal values (to 1e-9, or 1e-9 of their size) get exactly 0.
    """
    if norm not in ("std", "none"):
        raise ValueError(f"norm is 'std' or 'none', got {norm!r}")
    size = int(group.max(initial=-1)) + 1
    weights = valid.astype(np.float64)
    count = np.bincount(group, weights, size)
    x = np.where(valid, values, 0.0)
    mean = np.bincount(group, x, size) / np.maximum(count, 1)
    centred = np.where(valid, values - mean[group], 0.0)
    deviation = np.sqrt(np.bincount(group, centred**2, size) / np.maximum(count - 1, 1))
    scale = np.zeros(size)
    np.maximum.at(scale, group, np.abs(x))
    informative = (count > 1) & (deviation > 1e-9 * np.maximum(scale, 1.0))
    divisor = np.where(informative, deviation + eps, 1.0) if norm == "std" else np.ones(size)
    return np.where(informative[group], centred / divisor[group], 0.0)
