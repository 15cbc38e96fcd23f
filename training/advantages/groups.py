"""Group statistics: the one place in which advantages are centred and scaled.

Everything is float64 over any number of groups at once, linear in the number of values. Entries carry weights: 0
keeps an entry out of every statistic, 3 counts it as three. It knows nothing of rollouts or steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from palestra.training.table import Float64Array
from palestra.trajectories.model import BoolArray, IntArray

Norm = Literal["std", "none"]
EQUAL = 1e-9
"""Values that differ by less than this part of their size are equal."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupStats:
    """Statistics of G groups."""

    count: Float64Array  # (G,) summed weights
    mean: Float64Array  # (G,) 0 for groups without weight
    std: Float64Array  # (G,) 0 for groups of one
    informative: BoolArray  # (G,) more than one entry, and not all equal


def group_stats(
    values: Float64Array, group: IntArray, weights: Float64Array, *, unbiased: bool = True
) -> GroupStats:
    """Statistics of `values` by `group`, all (N,); an entry of weight 0 may hold anything, NaN included.

    std is sqrt(sum w (x - mean)^2 / (sum w - 1)), or over sum w where not `unbiased`.
    """
    size = int(group.max(initial=-1)) + 1
    counted = weights > 0
    x = np.where(counted, values, 0.0)
    count = np.asarray(np.bincount(group, weights, size), np.float64)
    mean = np.bincount(group, weights * x, size) / np.maximum(count, EQUAL)
    centred = np.where(counted, x - mean[group], 0.0)
    several = count > 1 + EQUAL
    denominator = np.where(several, count - unbiased, 1.0)
    std = np.sqrt(np.bincount(group, weights * centred**2, size) / denominator)
    scale = np.ones(size)
    np.maximum.at(scale, group, np.abs(x))
    return GroupStats(count, mean, np.where(several, std, 0.0), several & (std > EQUAL * scale))


def normalised(
    values: Float64Array,
    group: IntArray,
    valid: BoolArray,
    *,
    norm: Norm,
    eps: float = 1e-6,
    weights: Float64Array | None = None,
    unbiased: bool = True,
    lone_raw: bool = False,
) -> Float64Array:
    """(x - mean of its group) / (std of its group + eps), or only centred for norm "none"; shape of `values`.

    Statistics are over valid entries alone, with the unbiased (n-1) deviation; `weights` counts entries more than
    once. Entries that are invalid, alone in their group, or in a group of equal values (to 1e-9, or 1e-9 of their
    size) get exactly 0; with `lone_raw` one that is alone keeps its value (divided by 1 + eps for norm "std").
    """
    if norm not in ("std", "none"):
        raise ValueError(f"norm is 'std' or 'none', got {norm!r}")
    weights = valid.astype(np.float64) if weights is None else weights * valid
    stats = group_stats(values, group, weights, unbiased=unbiased)
    divisor = np.where(stats.informative, stats.std + eps, 1.0) if norm == "std" else np.ones(len(stats.std))
    told = stats.informative[group] & valid
    result = np.where(told, (values - stats.mean[group]) / divisor[group], 0.0)
    if lone_raw:
        alone = valid & (stats.count[group] <= 1 + EQUAL)
        result = np.where(alone, values / (1.0 + eps if norm == "std" else 1.0), result)
    return result


def whitened(values: Float64Array, weights: Float64Array, *, eps: float = 1e-8) -> Float64Array:
    """(x - mean) / sqrt(variance + eps) over all entries, shape of `values`; 0 for weight 0 and equal values."""
    group = np.zeros(len(values), np.int32)
    stats = group_stats(values, group, weights)
    if not stats.informative.any():
        return np.zeros(len(values))
    scaled = (values - stats.mean[0]) / np.sqrt(stats.std[0] ** 2 + eps)
    return np.where(weights > 0, scaled, 0.0)


def group_medians(values: Float64Array, group: IntArray, valid: BoolArray) -> Float64Array:
    """Lower median of the valid values of each group, shape (G,); 0 for groups without one."""
    size = int(group.max(initial=-1)) + 1
    kept = np.flatnonzero(valid)
    order = kept[np.lexsort((values[kept], group[kept]))]
    count = np.bincount(group[kept], minlength=size)
    middle = np.cumsum(count) - count + np.maximum(count - 1, 0) // 2
    medians = np.zeros(size)
    medians[count > 0] = values[order][middle[count > 0]]
    return medians


def paired(first: IntArray, second: IntArray) -> IntArray:
    """Dense ids of the pairs (first, second), both (N,) and at least -1; shape (N,)."""
    width = int(second.max(initial=-1)) + 2
    keys = (first.astype(np.int64) + 1) * width + second + 1
    ids: IntArray = np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int32)
    return ids
