"""HGPO: decisions in the same state, compared the more strongly the longer their history agrees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.training.advantages.compat import Compat, quirks
from palestra.training.advantages.groups import Norm, paired
from palestra.training.advantages.grpo import rollout_advantages
from palestra.training.advantages.returns import discounted_returns, next_rows
from palestra.training.table import StepTable
from palestra.trajectories.model import BoolArray, FloatArray, IntArray

Values = npt.NDArray[Any]
NOISE = 1e-6
"""A deviation of less than this part of the return is rounding noise."""


def hgpo(
    table: StepTable,
    *,
    gamma: float = 0.95,
    history: int = 2,
    alpha: float = 1.0,
    base: bool = False,
    norm: Norm = "std",
    eps: float = 1e-6,
    compat: Compat = None,
) -> FloatArray:
    """A_it = sum_k w_k a_k / (sum_k w_k + eps), w_k = (k + 1)^alpha, over k = 1 .. history + 1 with a_k != 0.

    a_k = (G_it - mean) / (std + eps) among the decisions of the task whose last k anchors, the present one
    included, are the same; std is the population's. With `base`, k = 0 is GRPO's advantage of the rollout. A
    decision that shares its state with no other gets 0 (without `base`). Source: Hierarchy-of-Groups policy
    optimization, ICLR 2026; code langfengQ/verl-agent recipe/hgpo/core_hgpo.py.

    Departures: a deviation below 1e-6 of the return is 0, where the code tests float32 values for exact 0, so that
    rounding noise takes part in the weights and returns of 7.35 and 8.15 are credited differently (quirk
    exact-zero); base statistics are over rollouts, not step rows (row-statistics); rows may come in any order.

    Returns float32 (S,).
    """
    asked = quirks(compat, ["exact-zero", "row-statistics", "lone-raw"])
    dtype: Any = np.float32 if "exact-zero" in asked else np.float64
    returns = discounted_returns(table, gamma).astype(dtype)
    total: Values = np.zeros(len(table), dtype)
    weight: Values = np.zeros(len(table), dtype)
    for k, level in enumerate(_levels(table, history + 1), start=1):
        item = _item(returns, level, norm, dtype(eps), exact="exact-zero" in asked)
        total += dtype((k + 1) ** alpha) * item
        weight += np.where(item != 0, dtype((k + 1) ** alpha), dtype(0))
    if base:
        item = rollout_advantages(table, norm=norm, eps=eps, compat=asked - {"exact-zero"})[table.rollout]
        total, weight = total + item, weight + (item != 0)
    return np.asarray(total / np.where(weight > 0, weight + dtype(eps), 1), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    cluster: IntArray  # (S,)
    counted: BoolArray  # (S,)


def _levels(table: StepTable, depth: int) -> list[_Level]:
    """Clusters of decisions by their last 1 .. depth anchors; not counted where one is unknown or missing."""
    following = next_rows(table)
    before = np.full(len(table), -1, np.intp)
    before[following[following >= 0]] = np.flatnonzero(following >= 0)
    state = paired(table.group, table.anchor)
    counted = table.rollout_valid()[table.rollout] & (table.anchor >= 0)
    levels = [_Level(state, counted)]
    for _ in range(depth - 1):
        shorter = levels[-1]
        reaches = counted & (before >= 0) & shorter.counted[before]
        cluster = paired(np.where(reaches, shorter.cluster[before], -1).astype(np.int32), state)
        levels.append(_Level(cluster, reaches))
    return levels


def _item(returns: Values, level: _Level, norm: Norm, eps: np.floating[Any], *, exact: bool) -> Values:
    """a_k of every decision, shape (S,); 0 where it has none."""
    size = int(level.cluster.max(initial=-1)) + 1
    count = np.bincount(level.cluster, level.counted, size).astype(returns.dtype)
    kept = np.flatnonzero(level.counted & (count[level.cluster] > 1))
    cluster, count = level.cluster[kept], np.maximum(count, 1)
    centred = returns[kept] - (_sums(returns[kept], cluster, size) / count)[cluster]
    std = np.sqrt(_sums(centred**2, cluster, size) / count)[cluster]
    if not exact:
        centred = np.where(np.abs(centred) > NOISE * np.maximum(np.abs(returns[kept]), 1.0), centred, 0.0)
    item = np.zeros_like(returns)
    item[kept] = centred / (std + eps) if norm == "std" else centred
    return item


def _sums(values: Values, cluster: IntArray, size: int) -> Values:
    sums = np.zeros(size, values.dtype)
    np.add.at(sums, cluster, values)
    return sums
