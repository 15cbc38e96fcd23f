"""A made-up rollout for the tests of the store: a few turns with a tool, or none."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from palestra.trajectories.graph import Segment, TokenGraph
from palestra.trajectories.model import (
    Call,
    EnvStep,
    Message,
    Rollout,
    Sampling,
    Score,
    ToolCall,
    Trajectory,
)

MakeTrajectory = Callable[..., Trajectory]


def build_trajectory(rollout_id: str, *, turns: int = 2, size: int = 20, **ids: str) -> Trajectory:
    """A scored rollout with `turns` calls of `size` sampled tokens, decided by its id."""
    random = np.random.default_rng(list(rollout_id.encode()))
    graph, calls, steps = TokenGraph(), [], []
    prompt = random.integers(0, 1000, size, dtype=np.int32)
    segments = [Segment(Message("user", "How many rows?"), size - 2)]
    for turn in range(turns):
        sampled = random.integers(0, 1000, size, dtype=np.int32)
        reply = Message(
            "assistant", "", "I look.", (ToolCall(f"call_{turn}", "query", '{"sql": "SELECT 1"}'),)
        )
        logprobs = -random.random(size, np.float32)
        node = graph.commit(prompt, segments, reply, sampled, logprobs, ((0, 3),))
        calls.append(_call(turn, node, len(prompt)))
        steps.append(_step(turn, turns))
        observed = random.integers(0, 1000, size, dtype=np.int32)
        prompt = np.concatenate([prompt, sampled, observed])
        segments = [Segment(Message("tool", "1", tool_call_id=f"call_{turn}"), len(prompt) - 2)]
    return Trajectory(
        _rollout(rollout_id, **ids),
        tuple(graph.nodes),
        tuple(calls),
        tuple(steps),
        {"f" * 64: ({"name": "query"},)},
    )


def _call(turn: int, node: int, prompt_tokens: int) -> Call:
    return Call(
        seq=turn,
        dialect="openai_chat",
        request_sha256="a" * 64,
        tools_sha256="f" * 64,
        prompt_mode="bridge",
        requested={"temperature": 0.2, "stop": ["\n"], "metadata": None},
        effective=Sampling(stop_token_ids=(7,)),
        logprob_semantics="processed",
        policy_version=3,
        finish_reason="stop",
        parse_status="ok",
        node_id=node,
        prompt_tokens=prompt_tokens,
        started_s=turn * 1.5,
        duration_s=1.25,
    )


def _step(turn: int, turns: int) -> EnvStep:
    return EnvStep(
        index=turn,
        call=turn,
        tool_call_id=f"call_{turn}",
        action='{"name": "query"}',
        observation="1",
        reward=float(turn == turns - 1),
        terminated=turn == turns - 1,
        truncated=False,
        anchor=f"state-{turn}",
        state_digest="b" * 64,
    )


def _rollout(
    rollout_id: str, run_id: str = "run", group_id: str = "group", task_id: str = "task", mode: str = "train"
) -> Rollout:
    return Rollout(
        rollout_id=rollout_id,
        run_id=run_id,
        group_id=group_id,
        task_id=task_id,
        sample_index=0,
        attempt=1,
        mode="eval" if mode == "eval" else "train",
        harness="tool_loop",
        harness_version="1",
        capture_level="tokens",
        seed=7,
        score=Score(1.0, True, {"exact": 1.0}, "sql", "1"),
        timings={"setup": 0.1, "total": 2.5},
        policy_versions=(3, 3),
        findings=("one retry",),
    )


@pytest.fixture
def make_trajectory() -> MakeTrajectory:
    """build_trajectory(rollout_id, turns=2, size=20, run_id=, group_id=, task_id=, mode=)."""
    return build_trajectory
