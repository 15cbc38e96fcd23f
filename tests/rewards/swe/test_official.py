"""Agreement with the official grader of SWE-bench: its rules on any results, its parser on what our runs print."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from official import agrees, official
from palestra.rewards.swe.grader import RepairTests
from palestra.rewards.swe.predictions import instance, write_predictions
from palestra.rewards.swe.rules import judge
from palestra.tasks.registry import load_tasks
from swe import broken_tree, machines, patch, task

WORDS = {"passed": "PASSED", "failed": "FAILED", "error": "ERROR", "skipped": "SKIPPED", "xfailed": "XFAIL"}


def test_its_rules_are_ours_on_any_results() -> None:
    rng = random.Random(7)
    names = [f"t.py::test_{i}[{i}]" for i in range(120)]
    statuses = {n: rng.choice(list(WORDS)) for n in names if rng.random() < 0.9}
    log = "\n".join(f"{WORDS[s]} {n}" for n, s in statuses.items())
    fail = [*names[:60], "t.py::test_7[", "t.py::test_1", "t.py::test_10"]
    ours = judge(statuses, fail, names[60:])
    status = official(log, fail, names[60:])["report"]["tests_status"]
    assert status["FAIL_TO_PASS"]["success"] == list(ours.fixed)
    assert status["FAIL_TO_PASS"]["failure"] == list(ours.not_fixed)
    assert status["PASS_TO_PASS"]["success"] == list(ours.kept)
    assert status["PASS_TO_PASS"]["failure"] == list(ours.not_kept)


def test_its_parser_reads_our_runs_as_our_report_says() -> None:
    grader = RepairTests(machines().fresh)
    fixed = broken_tree().text("intervals/core.py").replace("end < start", "end <= start")
    assert agrees(grader.run(task(), patch({"intervals/core.py": fixed}).encode()), task())
    assert not agrees(grader.run(task(), b""), task())


def test_it_reads_our_predictions(tmp_path: Path) -> None:
    file = tmp_path / "predictions.jsonl"
    write_predictions(file, {"acme__pkg-1": "diff --git ü\n", "acme__pkg-2": b"x\n"}, model="palestra")
    read = official("PASSED a", ["a"], [], predictions=file)["predictions"]
    assert [(p["instance_id"], p["model_patch"], p["model_name_or_path"]) for p in read] == [
        ("acme__pkg-1", "diff --git ü\n", "palestra"),
        ("acme__pkg-2", "x\n", "palestra"),
    ]


def test_a_diff_that_json_cannot_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'a' is not UTF-8"):
        write_predictions(tmp_path / "p.jsonl", {"a": b"\xff"}, model="m")


def test_an_instance_has_the_fields_of_the_data_set() -> None:
    record = instance(load_tasks("swe-tiny")[0])
    assert record["instance_id"] == "swe-tiny__caches__00-" + str(record["instance_id"]).rpartition("00-")[2]
    assert json.loads(str(record["FAIL_TO_PASS"])) and isinstance(record["patch"], str)
