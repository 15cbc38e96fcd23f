"""Flat training views of a trajectory: one sample per branch, each sampled token trained at most once.

A sample is derived, never stored. Where branches share a sampled node (a sub-agent, a fork after compaction),
the first branch carries its loss and the others see it as context.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import BoolArray, Call, FloatArray, IntArray, Node, Role, Trajectory

TRAINED_ROLES: frozenset[Role] = frozenset({"agent", "subagent"})
"""Calls whose tokens carry loss. Side calls, summaries and abandoned samples are context only."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One branch, from the root to the reply in node `leaf`, as flat arrays over its T tokens."""

    rollout_id: str
    leaf: int
    ids: IntArray  # (T,)
    loss_mask: BoolArray  # (T,) True on sampled tokens that this sample trains
    logprobs: FloatArray  # (T,) recorded at sampling; 0 where not sampled
    calls: IntArray  # (T,) Call.seq of the call that sampled the token; -1 where not sampled
    versions: IntArray  # (T,) policy version that sampled the token; -1 where not sampled


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """One conversation: the nodes from the root to a trained reply, and which of them it trains."""

    path: tuple[Node, ...]
    trained: frozenset[int]
    """Ids of the nodes whose replies carry loss here, and in no other branch."""


def branches(trajectory: Trajectory, roles: Collection[Role] = TRAINED_ROLES) -> list[Branch]:
    """Branches of `trajectory` that have replies to train, each reply trained in exactly one.

    A call is trained if its reply was delivered and its role is in `roles`. A branch ends in a trained reply
    with no trained reply below it, so that nothing is computed for what was abandoned.
    """
    graph = TokenGraph(trajectory.nodes)
    text = trajectory.rollout.capture_level == "text"
    trained = {c.node_id for c in trajectory.calls if c.delivered and c.role in roles}
    open_nodes = {n for n in trained if text or graph.nodes[n].sampled.any()}
    found = []
    for leaf in _ends(graph, open_nodes):
        path = tuple(graph.path(leaf))
        carried = frozenset(open_nodes & {n.node_id for n in path})
        found.append(Branch(path, carried))
        open_nodes -= carried
    return found


def samples(trajectory: Trajectory, roles: Collection[Role] = TRAINED_ROLES) -> list[Sample]:
    """`branches` as arrays, each sampled token carrying loss in exactly one; none where no tokens are known."""
    by_node = {c.node_id: c for c in trajectory.calls}
    by_node |= {c.node_id: c for c in trajectory.calls if c.delivered and c.role in roles}
    known = (b for b in branches(trajectory, roles) if b.path[-1].sampled.any())
    return [_flatten(trajectory.rollout.rollout_id, b, by_node) for b in known]


def _ends(graph: TokenGraph, trained: Collection[int]) -> list[int]:
    """Nodes of `trained` that are above no other, in the order they were written."""
    above: set[int] = set()
    for node_id in trained:
        parent = graph.nodes[node_id].parent
        while parent is not None and parent not in above:
            above.add(parent)
            parent = graph.nodes[parent].parent
    return sorted(set(trained) - above)


def _flatten(rollout_id: str, branch: Branch, by_node: dict[int, Call]) -> Sample:
    path = branch.path
    sizes = [len(n.token_ids) for n in path]
    sampled = np.concatenate([n.sampled for n in path])
    in_loss = np.repeat([n.node_id in branch.trained for n in path], sizes)
    logprobs = np.zeros(len(sampled), np.float32)
    logprobs[sampled] = np.concatenate([n.logprobs for n in path])
    seqs = [by_node[n.node_id].seq if n.node_id in by_node else -1 for n in path]
    return Sample(
        rollout_id=rollout_id,
        leaf=path[-1].node_id,
        ids=np.concatenate([n.token_ids for n in path]),
        loss_mask=sampled & in_loss,
        logprobs=logprobs,
        calls=np.where(sampled, np.repeat(np.array(seqs, np.int32), sizes), np.int32(-1)),
        versions=np.concatenate(list(_versions(path))),
    )


def _versions(path: tuple[Node, ...]) -> Iterator[IntArray]:
    for node in path:
        versions = np.full(len(node.token_ids), -1, np.int32)
        positions = np.flatnonzero(node.sampled)
        for start, version in node.versions:
            versions[positions[start:]] = version
        yield versions
