"""benchmarks/overhead.py: it runs, its parts add up, and its workload is what it says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overhead import turn_bodies
from palestra.trajectories.graph import Segment, TokenGraph
from palestra.trajectories.model import Message, Rollout, Score, ToolCall, Trajectory

SCORED = Rollout("r/0", "r", "g", "t", 0, 1, "train", "tool-loop", "1", "tokens", 0, Score(1.0, True))
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "overhead.py"


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), "--quick", "--json", "--tasks", "4", "--repeats", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def test_plays_four_attempts_of_five_turns_per_task(result: dict[str, Any]) -> None:
    assert result["rollouts"] == 4 * 4
    assert result["turns"] == 4 * 4 * 5


def test_parts_add_up_to_the_whole(result: dict[str, Any]) -> None:
    parts = result["breakdown_us"]
    assert sum(parts.values()) == pytest.approx(result["cpu_us_per_turn_with_environment"])
    ours = sum(us for part, us in parts.items() if part != "environment and grading")
    assert result["cpu_us_per_turn"] == pytest.approx(ours)
    assert result["goal_met"] == (ours <= result["goal_us"])


def test_says_how_far_the_figure_spreads_and_where_the_floor_is(result: dict[str, Any]) -> None:
    low, high = result["with_environment_quartiles"]
    assert low <= result["cpu_us_per_turn_with_environment"] <= high
    assert 0 < result["floor_us"] < result["cpu_us_per_turn"]
    assert result["turns_per_s"] > 0


def test_bodies_grow_with_the_history_and_carry_the_tools() -> None:
    graph = TokenGraph()
    ids = np.arange(3, dtype=np.int32)
    user = Message("user", "How many?")
    call = Message("assistant", tool_calls=(ToolCall("call_0", "query", '{"sql":"SELECT 1"}'),))
    graph.commit(ids[:2], [Segment(user, 2)], call, ids[2:], -np.ones(1, np.float32))
    tool = Message("tool", "1", tool_call_id="call_0")
    longer = np.arange(5, dtype=np.int32)
    graph.commit(
        longer[:4],
        [Segment(user, 2), Segment(tool, 4)],
        Message("assistant", "1"),
        longer[4:],
        -np.ones(1, np.float32),
    )
    first, second = turn_bodies(Trajectory(SCORED, tuple(graph.nodes)), [{"type": "function"}])
    assert json.loads(first[0])["messages"] == [{"role": "user", "content": "How many?"}]
    sent = json.loads(second[0])
    assert [m["role"] for m in sent["messages"]] == ["user", "assistant", "tool"]
    assert sent["messages"][2]["tool_call_id"] == "call_0"
    assert sent["tools"] == [{"type": "function"}]
    assert json.loads(second[1])["choices"][0]["message"]["content"] == "1"
