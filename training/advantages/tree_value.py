"""TreePS-RAG and PORTool: credit from the mean outcome below each node of a tree of rollouts."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.groups import group_stats
from palestra.training.advantages.grpo import rollout_advantages
from palestra.training.advantages.tree import Tree, node_means, reach
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import FloatArray


def treeps_rag(table: StepTable) -> FloatArray:
    """A_v = (V(v) - V(root)) + (V(v) - V(parent of v)), V the mean score of the rollouts through a node.

    experimental: Source is the abstract of TreePS-RAG, which takes process advantages from the mean outcome of a
    node's leaves; the form of the sum is assumed after TreeRL, and the normalisation (none) as well. Rows without a
    node get 0.

    Returns float32 (S,). Raises ValueError without `node`.
    """
    tree = reach(table)
    value, root, parent = _values(table, tree)
    return _kept(table, tree, (value - root) + (value - parent))


def portool(table: StepTable, *, fork_weight: float = 1.0, rollout_weight: float = 1.0) -> FloatArray:
    """A_v = w_f * (V(v) - mean V of the children of v's parent) + w_r * (R_i - mean_g R).

    V is the mean score of the rollouts through a node, R_i the score of the row's rollout: relative to the fork, and
    relative to the task. experimental: Source is a description of PORTool; weights of 1, no decay over steps, and
    outcomes alone as the reward of a step are assumed. Rows without a node get 0.

    Returns float32 (S,). Raises ValueError without `node`.
    """
    tree = reach(table)
    value, _, _ = _values(table, tree)
    whole = rollout_advantages(table, norm="none")[table.rollout]
    return _kept(table, tree, fork_weight * _fork_relative(table, tree, value) + rollout_weight * whole)


def _values(table: StepTable, tree: Tree) -> tuple[Float64Array, Float64Array, Float64Array]:
    """V of each row's node, of the root and of the node's parent; shape (S,) each."""
    scores, groups = table.scores(), table.rollout_groups()
    root = group_stats(scores, groups, table.rollout_valid().astype(np.float64)).mean[table.group]
    _, means = node_means(table, tree, scores)
    parent = np.where(tree.parent >= 0, means[tree.parent], root)
    return means[tree.node], root, parent


def _fork_relative(table: StepTable, tree: Tree, value: Float64Array) -> Float64Array:
    """V less the mean over its siblings and itself, every node once; shape (S,)."""
    inside = np.flatnonzero((tree.depth > 0) & table.rollout_valid()[table.rollout])
    once = inside[np.unique(tree.node[inside], return_index=True)[1]]
    family = np.where(tree.parent >= 0, tree.parent, tree.size + table.group).astype(np.int32)
    weights = np.zeros(len(table))
    weights[once] = 1.0
    stats = group_stats(value, family, weights)
    return np.where(stats.informative[family], value - stats.mean[family], 0.0)


def _kept(table: StepTable, tree: Tree, advantages: Float64Array) -> FloatArray:
    kept = (tree.depth > 0) & table.rollout_valid()[table.rollout]
    near = np.abs(advantages) <= 1e-9 * np.maximum(np.abs(table.scores()[table.rollout]), 1.0)
    return np.where(kept & ~near, advantages, 0.0).astype(np.float32)
