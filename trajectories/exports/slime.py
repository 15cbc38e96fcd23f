"""slime: one JSON object per sample, as `Sample.to_dict` writes and `Sample.from_dict` reads it.

`tokens` is prompt and response, `loss_mask` and `rollout_log_probs` cover the response. Samples of one rollout
repeat its reward; `metadata` says how many they are.

Source of the fields: THUDM/slime, slime/utils/types.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from palestra.trajectories.chat import chat_message
from palestra.trajectories.exports.flat import Flat, flat_samples
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Trajectory


def slime_rows(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    """The samples of one rollout."""
    graph = TokenGraph(trajectory.nodes)
    for flat in flat_samples(trajectory):
        yield _row(flat, graph)


def _row(flat: Flat, graph: TokenGraph) -> dict[str, Any]:
    return {
        "group_index": _number(flat.rollout.group_id),
        "index": _number(f"{flat.rollout.rollout_id}/{flat.index}"),
        "prompt": _prompt(flat, graph),
        "tokens": flat.sample.ids.tolist(),
        "response": "",
        "response_length": len(flat.sample.ids) - flat.start,
        "label": None,
        "reward": flat.rollout.reward,
        "loss_mask": flat.mask,
        "weight_versions": [str(version) for version in flat.versions],
        "rollout_log_probs": flat.logprobs,
        "remove_sample": False,
        "status": "truncated" if flat.rollout.truncated else "completed",
        "metadata": flat.names,
        "session_id": flat.rollout.rollout_id,
    }


def _prompt(flat: Flat, graph: TokenGraph) -> list[dict[str, Any]]:
    """The messages that end before the response."""
    messages, end = [], 0
    for node in graph.path(flat.sample.leaf):
        end += len(node.token_ids)
        if end > flat.start:
            break
        messages.append(chat_message(node.message))
    return messages


def _number(name: str) -> int:
    """slime counts groups and samples; this number is the same in every export."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "big")
