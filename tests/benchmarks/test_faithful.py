"""benchmarks/faithful.py: its audit finds every kind of unfaithful record, and real rollouts pass it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from faithful import Witnessed, audit_rollout, compare_logprobs
from palestra.training.batch import make_batch
from palestra.training.policy import Policy
from palestra.training.tiny import byte_tokenizer, save_model_dir
from palestra.trajectories.graph import Segment, TokenGraph
from palestra.trajectories.model import Call, IntArray, Message, Node, Rollout, Sampling, Score, Trajectory
from palestra.trajectories.sample import Sample, samples

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "faithful.py"
USER, REPLY, TOOL = Message("user", "u"), Message("assistant", "a"), Message("tool", "t")
PROMPTS = [[1, 2, 3], [1, 2, 3, 10, 11, 4, 5], [1, 2, 3, 10, 11, 4, 5, 20, 6], [1, 2, 9]]
REPLIES = [[10, 11], [20], [30, 31, 32], [40]]
"""Three turns of a conversation, and one that forks off it."""


def ids(values: Sequence[int]) -> IntArray:
    return np.array(values, np.int32)


def call(seq: int, node_id: int) -> Call:
    sampling = Sampling()
    return Call(
        seq, "chat", "", None, "render", {}, sampling, "processed", 0, "stop", "text", node_id, 0, 0.0, 0.0
    )


@pytest.fixture
def trajectory() -> Trajectory:
    graph = TokenGraph()
    calls = []
    for seq, (prompt, reply) in enumerate(zip(PROMPTS, REPLIES, strict=True)):
        logprobs = -np.arange(1, len(reply) + 1, dtype=np.float32)
        segments = [Segment(USER, 2), Segment(TOOL, len(prompt))] if seq else [Segment(USER, 2)]
        calls.append(call(seq, graph.commit(ids(prompt), segments, REPLY, ids(reply), logprobs)))
    rollout = Rollout("r", "", "g", "t", 0, 1, "train", "h", "1", "tokens", 0, Score(1.0, True))
    return Trajectory(rollout, tuple(graph.nodes), tuple(calls))


@pytest.fixture
def witnessed() -> dict[str, list[Witnessed]]:
    return {
        "r": [
            Witnessed(tuple(prompt), tuple(reply), tuple(-float(k + 1) for k in range(len(reply))))
            for prompt, reply in zip(PROMPTS, REPLIES, strict=True)
        ]
    }


def audited(
    trajectory: Trajectory, witnessed: dict[str, list[Witnessed]], views: list[Sample] | None = None
) -> dict[str, int]:
    return audit_rollout(trajectory, samples(trajectory) if views is None else views, witnessed)


def tampered(trajectory: Trajectory, node_id: int, **changes: object) -> Trajectory:
    nodes = list(trajectory.nodes)
    nodes[node_id] = replace(nodes[node_id], **changes)  # type: ignore[arg-type]
    return replace(trajectory, nodes=tuple(nodes))


def node_of(trajectory: Trajectory, seq: int) -> Node:
    return trajectory.nodes[trajectory.calls[seq].node_id]


def test_a_faithful_rollout_passes(trajectory: Trajectory, witnessed: dict[str, list[Witnessed]]) -> None:
    counts = audited(trajectory, witnessed)
    assert counts["sampled_tokens"] == counts["trained_once"] == 7
    assert counts["mismatches"] == counts["unseen_prefixes"] == counts["failed"] == 0
    assert counts["calls"] == 4
    assert counts["forks"] == 1


def test_another_token_in_the_record_is_a_mismatch_of_every_call_below(
    trajectory: Trajectory, witnessed: dict[str, list[Witnessed]]
) -> None:
    node = node_of(trajectory, 0)
    changed = node.token_ids.copy()
    changed[-1] += 1
    counts = audited(tampered(trajectory, node.node_id, token_ids=changed), witnessed)
    assert counts["mismatches"] == 3
    assert counts["unseen_prefixes"] == 6


def test_another_logprob_in_the_record_is_a_mismatch(
    trajectory: Trajectory, witnessed: dict[str, list[Witnessed]]
) -> None:
    node = node_of(trajectory, 2)
    changed = np.nextafter(node.logprobs, np.float32(0))
    assert audited(tampered(trajectory, node.node_id, logprobs=changed), witnessed)["mismatches"] == 1


def test_a_prompt_token_that_is_trained_is_found(
    trajectory: Trajectory, witnessed: dict[str, list[Witnessed]]
) -> None:
    node = node_of(trajectory, 0)
    assert not node.sampled.all()
    changed = tampered(
        trajectory,
        node.node_id,
        sampled=np.ones_like(node.sampled),
        logprobs=-np.ones(len(node.token_ids), np.float32),
    )
    counts = audited(changed, witnessed)
    assert counts["unseen_prefixes"] == len(node.token_ids)
    assert counts["trained_once"] == 5


def test_a_branch_that_is_trained_twice_is_found(
    trajectory: Trajectory, witnessed: dict[str, list[Witnessed]]
) -> None:
    views = samples(trajectory)
    assert audited(trajectory, witnessed, [*views, views[0]])["trained_once"] == 7 - int(
        views[0].loss_mask.sum()
    )


def test_a_branch_that_is_left_out_is_found(
    trajectory: Trajectory, witnessed: dict[str, list[Witnessed]]
) -> None:
    views = samples(trajectory)
    assert audited(trajectory, witnessed, views[1:])["trained_once"] == int(views[1].loss_mask.sum())


def test_a_reply_that_was_not_recorded_is_a_mismatch(
    trajectory: Trajectory, witnessed: dict[str, list[Witnessed]]
) -> None:
    shorter = replace(trajectory, calls=trajectory.calls[:-1])
    assert audited(shorter, witnessed)["mismatches"] == 1


def test_a_call_that_the_engine_never_saw_is_a_mismatch(
    trajectory: Trajectory, witnessed: dict[str, list[Witnessed]]
) -> None:
    witnessed["r"].pop()
    counts = audited(trajectory, witnessed)
    assert counts["mismatches"] == 2
    assert counts["unseen_prefixes"] == 1


def test_a_reply_that_reached_nobody_is_not_to_be_trained(
    trajectory: Trajectory, witnessed: dict[str, list[Witnessed]]
) -> None:
    calls = (*trajectory.calls[:-1], replace(trajectory.calls[-1], delivered=False))
    counts = audited(replace(trajectory, calls=calls), witnessed)
    assert counts["sampled_tokens"] == counts["trained_once"] == 6


@pytest.mark.parametrize("wrong_by", [0.5, float("nan")])
def test_another_logprob_than_the_trainers_is_found(
    trajectory: Trajectory, tmp_path: Path, wrong_by: float
) -> None:
    torch.set_num_threads(1)
    save_model_dir(tmp_path, byte_tokenizer(), seed=0, hidden=16, layers=1)
    views = samples(trajectory)
    honest, compared = compare_logprobs([recorded(tmp_path, v) for v in views], tmp_path)
    assert compared == 7
    assert honest <= 1e-4
    wrong = recorded(tmp_path, views[0])
    wrong.logprobs[np.flatnonzero(wrong.loss_mask)[0]] += wrong_by
    difference, _ = compare_logprobs([wrong, *(recorded(tmp_path, v) for v in views[1:])], tmp_path)
    assert not difference <= 1e-4


def recorded(model: Path, view: Sample) -> Sample:
    """`view` with the log-probabilities that the model gives."""
    policy = Policy.load(model)
    (rows,) = make_batch([view], {("r", int(s)): 1.0 for s in view.calls}).micro_batches(1000)
    logprobs = np.zeros(len(view.ids), np.float32)
    with torch.no_grad():
        logprobs[view.loss_mask] = policy.logprobs(rows)[0].numpy()
    return replace(view, logprobs=logprobs)


@pytest.mark.slow
def test_five_hundred_rollouts_of_a_real_policy_are_faithful() -> None:
    command = [sys.executable, str(SCRIPT), "--quick", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["faithful"] is True
    assert result["rollouts_of_3_turns"] >= 500
    assert result["trained_exactly_once"] == 1.0
    assert result["mismatches"] == result["unseen_prefixes"] == result["failed_rollouts"] == 0
    assert result["max_logprob_diff"] <= 1e-4
    assert result["forks"] > 0
