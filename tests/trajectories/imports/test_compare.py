"""A harness's own trace beside the recording: equal where only the spelling differs, else told step by step."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from palestra.trajectories.errors import TraceError
from palestra.trajectories.exports.atif import to_atif
from palestra.trajectories.imports.atif import read_atif
from palestra.trajectories.imports.compare import compare_traces


def kinds(trajectory: Any, document: Any) -> list[str]:
    return [d.kind for d in compare_traces(trajectory, read_atif(document))]


@pytest.fixture
def recorded(make_trajectory: Any) -> Any:
    return make_trajectory("r", turns=3)


def test_an_export_compares_equal(recorded: Any) -> None:
    assert kinds(recorded, to_atif(recorded)) == []


def test_what_a_harness_writes_otherwise_is_no_difference(recorded: Any) -> None:
    document = to_atif(recorded)
    document["schema_version"] = "ATIF-v1.2"
    document["unheard_of"] = 1
    for step in document["steps"]:
        step.pop("metrics", None)
        step["message"] = [{"type": "text", "text": f" {step['message']}\n"}]
        step.pop("extra", None)
        for call in step.get("tool_calls", ()):
            call["arguments"]["nothing"] = None
    assert kinds(recorded, document) == []


def test_missing_and_extra_steps(recorded: Any) -> None:
    document = to_atif(recorded)
    shorter, longer = deepcopy(document), deepcopy(document)
    del shorter["steps"][-1]
    longer["steps"].append({"step_id": 9, "source": "agent", "message": "One more."})
    assert kinds(recorded, shorter) == ["missing"]
    assert kinds(recorded, longer) == ["extra"]


def test_other_calls_results_and_tokens(recorded: Any) -> None:
    document = to_atif(recorded)
    first, second, third = [s for s in document["steps"] if s["source"] == "agent"]
    first["tool_calls"][0]["arguments"] = {"sql": "DROP"}
    second["observation"]["results"][0]["content"] = "2"
    third["metrics"]["completion_token_ids"][3] += 1
    assert kinds(recorded, document) == ["tool_calls", "observation", "completion_token_ids"]
    (tokens,) = (d for d in compare_traces(recorded, read_atif(document)) if d.kind == "completion_token_ids")
    assert "from 3" in tokens.recorded


@pytest.mark.parametrize(
    "source", [b"{", b"[]", b'{"schema_version": "ATIF-v2.0", "steps": []}', {"steps": 1}]
)
def test_what_is_no_trace_is_refused(source: Any) -> None:
    with pytest.raises(TraceError):
        read_atif(source)
