"""TreePO, its segment form, and SPO: rollouts that fork, compared at every fork."""

from __future__ import annotations

from typing import Literal

import numpy as np

from palestra.training.advantages.compat import Compat, quirks
from palestra.training.advantages.groups import group_stats, whitened
from palestra.training.advantages.returns import rollout_shares, token_counts
from palestra.training.advantages.tree import Tree, child_means, node_means, reach
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import FloatArray

Weighting = Literal["size", "average"]


def treepo(
    table: StepTable,
    *,
    weighting: Weighting = "average",
    skip_equal: bool = False,
    eps: float = 1e-8,
    compat: Compat = None,
) -> FloatArray:
    """A_i = mean over the nodes v on rollout i's path of (R_i - mean of R below v), normalised over the batch.

    v runs over the root and every node (column `node`) that more than one rollout passes. `weighting` "size"
    weighs v by the number of rollouts below it; `skip_equal` leaves out nodes below which all scores are equal.
    Source: Li et al. 2025, arXiv:2508.17445; code multimodal-art-projection/TreePO core_algos.py
    compute_tree_reinforce_plus_plus_baseline_outcome_advantage.

    Departures: every rollout counts once in the normalisation, not every token (quirk token-statistics); a rollout
    alone in its group gets 0, not its raw score (lone-raw).

    Returns float32 (S,). Raises ValueError without `node`.
    """
    asked = quirks(compat, ["token-statistics", "lone-raw"])
    weights = token_counts(table) if "token-statistics" in asked else rollout_shares(table)
    relative = _relative(table, weighting, skip_equal, lone_raw="lone-raw" in asked)
    return whitened(relative[table.rollout], weights, eps=eps).astype(np.float32)


def tree_progress(
    table: StepTable, *, parent_decay: float | None = None, eps: float = 1e-8, compat: Compat = None
) -> FloatArray:
    """A_v = V(v) - V(parent of v) for every decision v, normalised over the batch.

    V of a leaf is the size-weighted score of `treepo` (the leaf itself as a node included), V of another node the
    mean of its children's, V of the root 0. `parent_decay` eta multiplies V(parent) by eta^(nodes from v to the
    leaf). Source: multimodal-art-projection/TreePO core_algos.py compute_tree_rfpp_progress_outcome_advantage.

    Departures: as `treepo` (quirk token-statistics).

    Returns float32 (S,). Raises ValueError without `node`.
    """
    asked = quirks(compat, ["token-statistics"])
    weights = token_counts(table) if "token-statistics" in asked else rollout_shares(table)
    tree = reach(table)
    values = child_means(table, tree, _relative(table, "size", False, lone_raw=False, leaves=True))
    return whitened(_progress(table, tree, values, parent_decay), weights, eps=eps).astype(np.float32)


def spo(table: StepTable) -> FloatArray:
    """A_v = V(v) - V(parent of v), V normalised among siblings by their mean and population deviation.

    V of a leaf is its rollout's score, of another node the mean of its children's, of the root 0. Siblings of equal
    value get 0; a node without siblings keeps its value. Source: Guo et al. 2025, arXiv:2505.23564, as in
    multimodal-art-projection/TreePO core_algos.py compute_spo_advantage.

    Returns float32 (S,). Raises ValueError without `node`.
    """
    tree = reach(table)
    values = _among_siblings(table, tree, child_means(table, tree, table.scores()))
    advantages = _progress(table, tree, values, None)
    return np.where(table.rollout_valid()[table.rollout], advantages, 0.0).astype(np.float32)


def _relative(
    table: StepTable, weighting: Weighting, skip_equal: bool, *, lone_raw: bool, leaves: bool = False
) -> Float64Array:
    """Mean over the nodes of each rollout of its score less the node's mean; shape (number of rollouts,)."""
    if weighting not in ("size", "average"):
        raise ValueError(f"weighting is 'size' or 'average', got {weighting!r}")
    scores, group, valid = table.scores(), table.rollout_groups(), table.rollout_valid()
    stats = group_stats(scores, group, valid.astype(np.float64))
    raw = lone_raw & (stats.count[group] <= 1)
    weight = stats.count[group] if weighting == "size" else np.ones(len(scores))
    total = weight * np.where(raw, scores, scores - stats.mean[group])
    tree = reach(table)
    count, mean = node_means(table, tree, scores)
    row_scores = scores[table.rollout]
    inside = tree.depth > 0
    deviation = np.where(inside, row_scores - mean[tree.node], 0.0)
    shared = inside & (count[tree.node] > (0 if leaves else 1))
    if skip_equal:
        spread = np.bincount(tree.node, np.where(valid[table.rollout], np.abs(deviation), 0.0), tree.size)
        shared &= spread[tree.node] > 0
    row_weight = np.where(shared, count[tree.node] if weighting == "size" else 1.0, 0.0)
    total = total + np.bincount(table.rollout, row_weight * deviation, len(scores))
    weight = weight + np.bincount(table.rollout, row_weight, len(scores))
    return np.where(valid, total / np.maximum(weight, 1e-12), 0.0)


def _progress(table: StepTable, tree: Tree, values: Float64Array, decay: float | None) -> Float64Array:
    """V(v) - eta^k V(parent) per row, shape (S,); 0 for rows without a node."""
    length = np.zeros(len(tree.leaf), np.int64)
    np.maximum.at(length, table.rollout, tree.depth)
    left = length[table.rollout] - tree.depth + 1
    factor = 1.0 if decay is None else decay**left
    parent = np.where(tree.parent >= 0, values[tree.parent], 0.0)
    return np.where(tree.depth > 0, values[tree.node] - factor * parent, 0.0)


def _among_siblings(table: StepTable, tree: Tree, values: Float64Array) -> Float64Array:
    """`values` of the nodes, normalised among the children of one parent; shape (N,)."""
    inside = np.flatnonzero((tree.depth > 0) & table.rollout_valid()[table.rollout])
    nodes, first = np.unique(tree.node[inside], return_index=True)
    rows = inside[first]
    roots = tree.size + table.group[rows]
    family = np.where(tree.parent[rows] >= 0, tree.parent[rows], roots).astype(np.int32)
    stats = group_stats(values[nodes], family, np.ones(len(nodes)), unbiased=False)
    spread = stats.std[family] > 1e-8
    scaled = np.where(
        spread, (values[nodes] - stats.mean[family]) / np.where(spread, stats.std[family], 1.0), 0.0
    )
    normal = values.copy()
    normal[nodes] = np.where(stats.count[family] > 1, scaled, values[nodes])
    return normal
