"""Our own records as plain JSON: one object per rollout, with everything but the blobs.

`nodes` is the token graph, `calls`, `steps` and `tools` are as in `trajectories.model`, `samples` are the
branches to train. A rollout that was not measured has `reward` null and says why in `failure`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from palestra.trajectories.model import Node, Trajectory
from palestra.trajectories.sample import Sample, samples


def plain_rows(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    """The rollout, as one row."""
    yield {
        **asdict(trajectory.rollout),
        "reward": trajectory.rollout.reward,
        "nodes": [_node(node) for node in trajectory.nodes],
        "calls": [asdict(call) for call in trajectory.calls],
        "steps": [asdict(step) for step in trajectory.steps],
        "tools": {digest: list(definitions) for digest, definitions in trajectory.tools.items()},
        "samples": [_sample(sample) for sample in samples(trajectory)],
    }


def _node(node: Node) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "parent": node.parent,
        "message": asdict(node.message),
        "token_ids": node.token_ids.tolist(),
        "sampled": node.sampled.astype(int).tolist(),
        "logprobs": node.logprobs.tolist(),
        "versions": node.versions,
    }


def _sample(sample: Sample) -> dict[str, Any]:
    arrays = {name: getattr(sample, name) for name in ("ids", "loss_mask", "logprobs", "calls", "versions")}
    return {"leaf": sample.leaf} | {
        name: (array.astype(int) if array.dtype == np.bool_ else array).tolist()
        for name, array in arrays.items()
    }
