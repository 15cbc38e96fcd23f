"""TRL: rows for GRPO and rows for supervised fine-tuning.

`grpo_rows`: one object per sample; joined into lists by key they are what a `rollout_func` returns
(prompt_ids, completion_ids, logprobs; env_mask is 1 on the tokens of the model, and every other key reaches the
reward functions). `sft_rows`: conversations as prompt and completion, so that loss falls on the completion alone
(set `assistant_only_loss` to leave tool results out of it). Each reply is in at most one completion; where a reply
that is not to be trained stands between others, what follows it is a row of its own.

Source of the fields: huggingface/trl 1.16, trl/trainer/grpo_trainer.py, trl/trainer/sft_trainer.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from palestra.trajectories.chat import chat_message
from palestra.trajectories.exports.flat import flat_samples
from palestra.trajectories.model import Trajectory
from palestra.trajectories.sample import Branch, branches


def grpo_rows(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    """The samples of one rollout."""
    for flat in flat_samples(trajectory):
        yield {
            "prompt_ids": flat.prompt_ids,
            "completion_ids": flat.response_ids,
            "logprobs": flat.logprobs,
            "env_mask": flat.mask,
            "reward": flat.rollout.reward,
            **flat.names,
        }


def sft_rows(trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    """The conversations of one rollout, with the tools that were offered in them."""
    tools = {call.node_id: call.tools_sha256 for call in trajectory.calls}
    rollout = trajectory.rollout
    for branch in branches(trajectory):
        messages = [chat_message(node.message) for node in branch.path]
        for start, end in _spans(branch):
            offered = tools[branch.path[end - 1].node_id]
            yield {
                "prompt": messages[:start],
                "completion": messages[start:end],
                "tools": list(trajectory.tools[offered]) if offered is not None else [],
                "reward": rollout.reward,
                "rollout_id": rollout.rollout_id,
                "task_id": rollout.task_id,
            }


def _spans(branch: Branch) -> Iterator[tuple[int, int]]:
    """[start, end) of stretches that begin and end with a trained reply and have no other kind of reply."""
    start = end = None
    for position, node in enumerate(branch.path):
        if node.node_id in branch.trained:
            start = position if start is None else start
            end = position + 1
        elif node.message.role == "assistant" and start is not None and end is not None:
            yield start, end
            start = end = None
    if start is not None and end is not None:
        yield start, end
