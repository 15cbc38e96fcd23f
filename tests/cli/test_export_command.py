"""`palestra export` and `palestra show --compare`, as a user types them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from palestra.trajectories.graph import Segment, TokenGraph
from palestra.trajectories.model import (
    Call,
    Failure,
    Message,
    Rollout,
    Sampling,
    Score,
    Trajectory,
)
from palestra.trajectories.store import Store

Command = Callable[..., Any]
SCORED = Rollout("a/1", "run", "g", "t", 0, 1, "train", "loop", "1", "tokens", 0, score=Score(1.0, True))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    graph = TokenGraph()
    prompt, reply = np.array([1, 2, 3], np.int32), np.array([4, 5], np.int32)
    asked, said = Message("user", "Hi"), Message("assistant", "Yes.")
    node = graph.commit(prompt, [Segment(asked, 2)], said, reply, np.array([-1, -2], np.float32))
    call = Call(0, "chat", "", None, "render", {}, Sampling(), "processed", 0, "stop", "ok", node, 3, 0, 0)
    failed = replace(SCORED, rollout_id="a/2", score=None, failure=Failure("proxy", "call", "broke"))
    with Store.open(tmp_path / "runs" / "store", write=True) as store:
        for rollout in (SCORED, failed, replace(SCORED, rollout_id="a/3", mode="eval")):
            store.append(Trajectory(rollout, tuple(graph.nodes), (call,)))
    return tmp_path / "runs"


@pytest.mark.e2e
def test_rollouts_are_exported_and_what_is_left_out_is_said(
    palestra: Command, run_dir: Path, tmp_path: Path
) -> None:
    ended = palestra("export", run_dir, "--format", "trl", "-o", tmp_path / "grpo.jsonl")
    assert ended.status == 0
    assert "1 rows of 1 rollouts" in ended.out
    assert "left out: 1 with no valid score; 1 with mode eval" in ended.out
    (line,) = (tmp_path / "grpo.jsonl").read_bytes().splitlines()
    row = orjson.loads(line)
    assert (row["prompt_ids"], row["completion_ids"], row["logprobs"]) == ([1, 2, 3], [4, 5], [-1.0, -2.0])
    again = palestra("export", run_dir, "--format", "trl", "-o", tmp_path / "grpo.jsonl")
    assert again.status == 2 and "exists already" in again.err


@pytest.mark.e2e
def test_an_exported_trace_compares_equal_until_it_is_changed(
    palestra: Command, run_dir: Path, tmp_path: Path
) -> None:
    palestra("export", run_dir, "--format", "atif", "-o", tmp_path / "atif")
    trace = tmp_path / "atif" / "a%2F1.json"
    same = palestra("show", run_dir, "a/1", "--compare", trace)
    assert same.status == 0 and "say the same" in same.out
    trace.write_bytes(trace.read_bytes().replace(b"Yes.", b"No."))
    other = palestra("show", run_dir, "a/1", "--compare", trace)
    assert other.status == 1 and "step 2: message" in other.out and "1 differences" in other.out
    none = palestra("show", run_dir, "--compare", trace)
    assert none.status == 2 and "--compare takes one rollout" in none.err


@pytest.mark.e2e
def test_a_key_that_is_not_set_is_asked_for(palestra: Command, tmp_path: Path) -> None:
    ended = palestra(
        "proxy", "--upstream", "http://127.0.0.1:9", "--upstream-key-env", "NO_SUCH_KEY", "--model", "m",
        "--run-dir", tmp_path / "r",
    )  # fmt: skip
    assert ended.status == 2 and "NO_SUCH_KEY is not set" in ended.err
