"""verl: one JSON object per sample with the fields of `AgentLoopOutput`.

`AgentLoopOutput(**row).as_dict()` gives the tensors of a DataProto: prompts, responses, response_mask,
rollout_log_probs, rm_scores. `extra_fields["uid"]` is the group, which verl's GRPO takes for the prompt.

Source of the fields: verl-project/verl, verl/experimental/agent_loop/agent_loop.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from palestra.trajectories.exports.flat import Flat, flat_samples
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Trajectory


def verl_rows(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    """The samples of one rollout."""
    graph = TokenGraph(trajectory.nodes)
    for flat in flat_samples(trajectory):
        yield _row(flat, turns=len(graph.path(flat.sample.leaf)))


def _row(flat: Flat, turns: int) -> dict[str, Any]:
    timings = flat.rollout.timings
    return {
        "prompt_ids": flat.prompt_ids,
        "response_ids": flat.response_ids,
        "response_mask": flat.mask,
        "response_logprobs": flat.logprobs,
        "reward_score": flat.rollout.reward,
        "num_turns": turns,
        "metrics": {
            "generate_sequences": timings.get("agent", 0.0),
            "tool_calls": timings.get("env", 0.0),
            "compute_score": timings.get("grade", 0.0),
        },
        "extra_fields": {"uid": flat.rollout.group_id, **flat.names, "policy_versions": flat.versions},
    }
