"""Whatever the form, each sampled token carries loss at most once, with its own log-probability, behind the
prefix that the engine saw; and what was not measured is no reward of 0."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import needs
from palestra.trajectories.exports.atif import to_atif
from palestra.trajectories.exports.formats import FORMATS, Selection, left_out
from palestra.trajectories.exports.parquet import parquet_rows
from palestra.trajectories.exports.plain import plain_rows
from palestra.trajectories.exports.slime import slime_rows
from palestra.trajectories.exports.trl import grpo_rows, sft_rows
from palestra.trajectories.exports.verl import verl_rows
from palestra.trajectories.graph import Segment, TokenGraph
from palestra.trajectories.model import (
    Call,
    Failure,
    Media,
    Message,
    Role,
    Rollout,
    Sampling,
    Score,
    ToolCall,
    Trajectory,
)
from palestra.trajectories.sample import branches, samples

PEERS = Path(__file__).parents[3] / ".cache" / "peers"
ROLES: tuple[Role, ...] = ("agent", "agent", "subagent", "auxiliary", "compaction")
SCORED = Rollout("r/1", "run", "g", "t", 0, 1, "train", "loop", "1", "tokens", 0, score=Score(1.0, True))
FAILED = replace(SCORED, score=None, failure=Failure("provider", "generate", "gone"))


@st.composite
def recordings(draw: st.DrawFn) -> Trajectory:
    """A session that goes on, forks, calls tools, loses replies and makes side calls."""
    graph, calls = TokenGraph(), list[Call]()
    ends: list[list[int]] = [[]]
    token = iter(range(1, 10_000))
    for seq in range(draw(st.integers(1, 6))):
        before = draw(st.sampled_from(ends))
        role = draw(st.sampled_from(["tool", "user"])) if before else "user"
        prompt = [*before, *(next(token) for _ in range(draw(st.integers(1, 3)))), 0]
        sampled = [next(token) for _ in range(draw(st.integers(1, 4)))]
        made = (ToolCall(f"call_{seq}", "f", draw(st.sampled_from(["{}", '{"x": NaN}', "[1]", "\ud800"]))),)
        reply = Message("assistant", draw(st.text(max_size=3)), None, draw(st.sampled_from([made, ()])))
        asked = Message(role, "q", tool_call_id=f"call_{seq - 1}" if role == "tool" else None)
        logprobs = np.array([-x / 8 for x in sampled], np.float32)
        ids = [np.array(x, np.int32) for x in (prompt, sampled)]
        node = graph.commit(ids[0], [Segment(asked, len(prompt) - 1)], reply, ids[1], logprobs)
        call = Call(
            seq, "chat", "", None, "render", {}, Sampling(), "processed", 0, "stop", "ok", node, 0, 0, 0
        )
        calls.append(replace(call, role=draw(st.sampled_from(ROLES)), delivered=draw(st.booleans())))
        ends.append(prompt + sampled)
    return Trajectory(SCORED, tuple(graph.nodes), tuple(calls))


def trained(trajectory: Trajectory) -> Counter[tuple[int, float]]:
    """(token, log-probability) of all that carries loss; tokens are unique in these recordings."""
    pairs = (zip(s.ids[s.loss_mask], s.logprobs[s.loss_mask], strict=True) for s in samples(trajectory))
    return Counter((int(i), float(p)) for pair in pairs for i, p in pair)


def slime_parts(row: dict[str, Any]) -> tuple[list[int], list[int], list[int], list[float]]:
    cut = len(row["tokens"]) - row["response_length"]
    return row["tokens"][:cut], row["tokens"][cut:], row["loss_mask"], row["rollout_log_probs"]


FLAT: dict[str, tuple[Any, Any]] = {
    "slime": (slime_rows, slime_parts),
    "verl": (
        verl_rows,
        lambda r: (r["prompt_ids"], r["response_ids"], r["response_mask"], r["response_logprobs"]),
    ),
    "trl": (grpo_rows, lambda r: (r["prompt_ids"], r["completion_ids"], r["env_mask"], r["logprobs"])),
}


@pytest.mark.parametrize("name", FLAT)
@settings(max_examples=60, deadline=None)
@given(trajectory=recordings())
def test_each_trained_token_once(name: str, trajectory: Trajectory) -> None:
    rows, parts = FLAT[name]
    found: Counter[tuple[int, float]] = Counter()
    whole = [s.ids.tolist() for s in samples(trajectory)]
    for row, ids in zip(rows(trajectory), whole, strict=True):
        prompt, response, mask, logprobs = parts(row)
        assert prompt + response == ids
        assert len(response) == len(mask) == len(logprobs)
        assert mask[0] == 1 and set(mask) <= {0, 1}
        assert all(p == 0.0 for p, m in zip(logprobs, mask, strict=True) if not m)
        found.update((i, p) for i, p, m in zip(response, logprobs, mask, strict=True) if m)
    assert found == trained(trajectory)
    assert all(count == 1 for count in found.values())


@settings(max_examples=60, deadline=None)
@given(trajectory=recordings())
def test_parquet_and_plain_rows_are_the_samples(trajectory: Trajectory) -> None:
    tables = [row for table, row in parquet_rows(trajectory) if table == "samples"]
    (plain,) = plain_rows(trajectory)
    for sample, row, other in zip(samples(trajectory), tables, plain["samples"], strict=True):
        assert row["ids"].tolist() == other["ids"] == sample.ids.tolist()
        assert row["loss_mask"].astype(int).tolist() == other["loss_mask"]
        assert row["logprobs"].tolist() == other["logprobs"]


@settings(max_examples=60, deadline=None)
@given(trajectory=recordings())
def test_an_sft_completion_has_each_reply_once_and_no_other(trajectory: Trajectory) -> None:
    replies = {n: trajectory.nodes[n].message for b in branches(trajectory) for n in b.trained}
    rows = list(sft_rows(trajectory))
    said = [m["content"] for r in rows for m in r["completion"] if m["role"] == "assistant"]
    assert Counter(said) == Counter(m.content for m in replies.values())
    assert all(row["completion"][0]["role"] == "assistant" for row in rows)


def steps_of(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for part in [document, *document.get("subagent_trajectories", ())]:
        yield from part["steps"]


@settings(max_examples=60, deadline=None)
@given(trajectory=recordings())
def test_atif_has_each_call_once_with_the_prompt_that_the_engine_saw(trajectory: Trajectory) -> None:
    graph = TokenGraph(trajectory.nodes)
    found = {s["extra"]["palestra"]["seq"]: s for s in steps_of(to_atif(trajectory)) if "metrics" in s}
    assert sorted(found) == [c.seq for c in trajectory.calls]
    marked = {n for b in branches(trajectory) for n in b.trained}
    for call in trajectory.calls:
        metrics = found[call.seq]["metrics"]
        ids = metrics["prompt_token_ids"] + metrics["completion_token_ids"]
        assert ids == graph.path_ids(call.node_id).tolist()
        assert metrics["logprobs"] == trajectory.nodes[call.node_id].logprobs.tolist()
        assert found[call.seq]["extra"]["palestra"]["trained"] == (call.node_id in marked)
    copied = [s for s in steps_of(to_atif(trajectory)) if s.get("is_copied_context")]
    assert not any("metrics" in s for s in copied)


@pytest.fixture(scope="module")
def harbor() -> Any:
    """harbor's own data models, without harbor's package."""
    import importlib
    import sys
    import types

    needs.need((PEERS / "done").exists(), "wheels of harbor and verl: bash tests/services/peers.sh")
    for name in ("harbor", "harbor.models"):
        module = types.ModuleType(name)
        module.__path__ = [str(PEERS / name.replace(".", "/"))]
        sys.modules[name] = module
    return importlib.import_module("harbor.models.trajectories").Trajectory


@settings(max_examples=60, deadline=None)
@given(trajectory=recordings())
def test_harbor_accepts_every_document(harbor: Any, trajectory: Trajectory) -> None:
    from palestra.trajectories.exports.jsontext import json_bytes

    body = json_bytes(to_atif(trajectory)).decode().replace("\\ud800", "")
    assert harbor.model_validate_json(body).schema_version == "ATIF-v1.8"


def test_harbor_accepts_images_and_results_without_their_call(harbor: Any) -> None:
    graph = TokenGraph()
    image = Message(
        "user", "ab", media=(Media("a" * 64, "image/png", 1), Media("b" * 64, "text/uri-list", 2))
    )
    orphan = Message("tool", "found", tool_call_id="unknown")
    segments = [Segment(Message("system", "s"), 1), Segment(orphan, 2), Segment(image, 3)]
    graph.commit(
        np.array([1, 2, 3, 0], np.int32),
        segments,
        Message("assistant", "ok"),
        np.array([4], np.int32),
        np.zeros(1, np.float32),
    )
    document = to_atif(Trajectory(SCORED, tuple(graph.nodes)))
    parts = harbor.model_validate(document).steps[2].message
    assert [p.type for p in parts] == ["text", "image", "text", "text"]
    assert parts[1].source.path == f"blobs/aa/{'a' * 64}"


def declared(path: Path, name: str) -> set[str]:
    """Fields of a class in a file that cannot be imported without all that it needs."""
    tree = ast.parse(path.read_text())
    (found,) = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name)
    names = (
        n.target.id for n in found.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    )
    return set(names)


def example() -> Trajectory:
    graph = TokenGraph()
    ids = np.array([1, 2, 0], np.int32), np.array([3, 4], np.int32)
    node = graph.commit(
        ids[0], [Segment(Message("user", "q"), 2)], Message("assistant", "a"), ids[1], np.zeros(2, np.float32)
    )
    call = Call(0, "chat", "", None, "render", {}, Sampling(), "processed", 0, "stop", "ok", node, 3, 0, 0)
    return Trajectory(SCORED, tuple(graph.nodes), (call,))


def test_verl_declares_the_fields() -> None:
    source = PEERS / "verl/experimental/agent_loop/agent_loop.py"
    needs.need(source.exists(), "the wheel of verl: bash tests/services/peers.sh")
    (row,) = verl_rows(example())
    assert set(row) <= declared(source, "AgentLoopOutput")
    assert set(row["metrics"]) <= declared(source, "AgentLoopMetrics")


def test_trl_requires_the_keys() -> None:
    source = PEERS / "trl/trainer/grpo_trainer.py"
    needs.need(source.exists(), "the wheel of trl: bash tests/services/peers.sh")
    (row,) = grpo_rows(example())
    sets = (n.value for n in ast.walk(ast.parse(source.read_text())) if isinstance(n, ast.Assign))
    required = [ast.literal_eval(n) for n in sets if isinstance(n, ast.Set) and "prompt_ids" in ast.dump(n)]
    assert required and all(keys <= set(row) for keys in required)
    assert "env_mask" in row and '"env_mask"' in source.read_text()


def test_slime_gets_the_fields_of_its_sample() -> None:
    """Field names as in THUDM/slime, slime/utils/types.py; `Sample.from_dict` needs a status of its enum."""
    (row,) = slime_rows(example())
    assert row["status"] == "completed" and row["prompt"] == [{"role": "user", "content": "q"}]
    assert row["response_length"] == len(row["loss_mask"]) == len(row["rollout_log_probs"]) == 2
    (cut,) = slime_rows(replace(example(), rollout=replace(SCORED, truncated=True)))
    assert cut["status"] == "truncated"


@pytest.mark.parametrize("name", ["slime", "verl", "trl", "trl-sft"])
def test_forms_for_training_leave_out_what_was_not_measured(name: str) -> None:
    assert left_out(FORMATS[name], Selection(), FAILED) == "no valid score"
    assert left_out(FORMATS[name], Selection(), SCORED) is None


@pytest.mark.parametrize("name", ["slime", "verl", "trl"])
def test_no_option_makes_a_reward_of_a_failure(name: str) -> None:
    assert left_out(FORMATS[name], Selection(unscored=True), FAILED) == "no valid score"
    text = replace(SCORED, capture_level="text")
    assert left_out(FORMATS[name], Selection(), text) == "capture level text"


@pytest.mark.parametrize("name", ["atif", "parquet", "jsonl"])
def test_other_forms_give_it_the_reward_null(name: str) -> None:
    assert left_out(FORMATS[name], Selection(), FAILED) is None
    row = next(FORMATS[name].rows(replace(example(), rollout=FAILED)))
    if name == "atif":
        row = row["extra"]["palestra"]
    elif name == "parquet":
        row = row[1]
    assert row["reward"] is None and "gone" in str(row["failure"])


def test_a_selection_is_by_mode_and_reward() -> None:
    assert left_out(FORMATS["jsonl"], Selection(mode="eval"), SCORED) == "mode train"
    assert left_out(FORMATS["jsonl"], Selection(min_reward=1.5), SCORED) == "reward below 1.5"


def test_rows_are_json(tmp_path: Path) -> None:
    for name in ("slime", "verl", "trl", "trl-sft", "jsonl"):
        (row,) = FORMATS[name].rows(example())
        assert orjson.loads(orjson.dumps(row))
