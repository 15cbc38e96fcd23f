"""Trees of rollouts: credit for the nodes that rollouts share before they fork.

A rollout is a path from the root (its task) to a leaf; its rows name the nodes on it in the column `node`, equal
where rollouts share the node. A row without a node is outside the tree. `reach` is the reading of that column that
the estimators have in common.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from palestra.training.advantages.groups import paired
from palestra.training.advantages.returns import Rows, rows_by_position
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """S rows on N nodes."""

    rows: list[Rows]  # rows with a node, by depth: children of the root first
    node: IntArray  # (S,) dense, unique across groups; rows without a node share one id that is in no `rows`
    parent: IntArray  # (S,) node of the row before in the same rollout; -1: the root
    depth: IntArray  # (S,) 1 for children of the root; 0 for rows without a node
    leaf: IntArray  # (number of rollouts,) last node of each rollout; -1: none
    size: int  # N


def reach(table: StepTable) -> Tree:
    """The tree of a table. Raises ValueError without `node`, or where a node has two parents."""
    node = paired(table.group, table.extra("node"))
    inside = table.extra("node") >= 0
    rollouts = int(table.rollout.max(initial=-1)) + 1
    leaf, depth_now = np.full(rollouts, -1, np.int32), np.zeros(rollouts, np.int32)
    parent, depth = np.full(len(table), -1, np.int32), np.zeros(len(table), np.int32)
    for rows in (r[inside[r]] for r in rows_by_position(table)):
        at = table.rollout[rows]
        parent[rows] = leaf[at]
        depth_now[at] += 1
        leaf[at], depth[rows] = node[rows], depth_now[at]
    by_depth = [np.flatnonzero(depth == d) for d in range(1, int(depth.max(initial=0)) + 1)]
    size = int(node.max(initial=-1)) + 1
    _one_parent(node[inside], parent[inside], size)
    return Tree(by_depth, node, parent, depth, leaf, size)


def _one_parent(node: IntArray, parent: IntArray, size: int) -> None:
    known = np.full(size, -2, np.int32)
    known[node] = parent
    if (known[node] != parent).any():
        raise ValueError("a node of the tree has two parents: name nodes by their whole path")


def node_means(table: StepTable, tree: Tree, scores: Float64Array) -> tuple[Float64Array, Float64Array]:
    """(valid rollouts through each node, mean of their `scores`), shape (N,) each."""
    counted = (tree.depth > 0) & table.rollout_valid()[table.rollout]
    count = np.asarray(np.bincount(tree.node, counted, tree.size), np.float64)
    total = np.bincount(tree.node, np.where(counted, scores[table.rollout], 0.0), tree.size)
    return count, total / np.maximum(count, 1)


def child_means(table: StepTable, tree: Tree, scores: Float64Array) -> Float64Array:
    """Value of each node: a leaf's score, else the mean of its children's values, every child once; shape (N,)."""
    total, count = np.zeros(tree.size), np.zeros(tree.size)
    ends = np.flatnonzero(table.rollout_valid() & (tree.leaf >= 0))
    np.add.at(total, tree.leaf[ends], scores[ends])
    np.add.at(count, tree.leaf[ends], 1)
    for rows in reversed(tree.rows):
        child, first = np.unique(tree.node[rows], return_index=True)
        parent = tree.parent[rows][first]
        known = (parent >= 0) & (count[child] > 0)
        np.add.at(total, parent[known], total[child[known]] / count[child[known]])
        np.add.at(count, parent[known], 1)
    return total / np.maximum(count, 1)
