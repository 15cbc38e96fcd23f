"""Agreement with the official grader of SWE-bench: its rules on any results, its parser on what our runs print."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from needs import need
from palestra.rewards.swe.grader import RepairTests
from palestra.rewards.swe.predictions import instance, write_predictions
from palestra.rewards.swe.rules import judge
from palestra.rewards.swe.suite import SuiteRun
from palestra.tasks.registry import load_tasks
from palestra.tasks.swe.repair import repair_of
from palestra.tasks.task import Task
from swe import broken_tree, machines, patch, task

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".cache" / "swebench" / "bin" / "python"
WORDS = {"passed": "PASSED", "failed": "FAILED", "error": "ERROR", "skipped": "SKIPPED", "xfailed": "XFAIL"}


def official(log: str, fail: list[str], keep: list[str], predictions: Path | None = None) -> dict[str, Any]:
    """What the official harness makes of the output of a test command."""
    need(PYTHON.exists(), "swebench in .cache/swebench: run tests/services/swebench.sh")
    asked = {
        "log": f">>>>> Start Test Output\n{log}\n>>>>> End Test Output\n",
        "fail_to_pass": fail,
        "pass_to_pass": keep,
        "predictions": str(predictions) if predictions else None,
    }
    script = Path(__file__).parents[2] / "support" / "official_swebench.py"
    done = subprocess.run(
        [PYTHON, script], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def agrees(run: SuiteRun, of: Task) -> bool:
    """Whether the official verdict on the output of a run is ours on its report; ours is returned."""
    repair = repair_of(of)
    ours = judge(run.statuses, repair.fail_to_pass, repair.pass_to_pass)
    theirs = official(run.log, list(repair.fail_to_pass), list(repair.pass_to_pass))
    report = theirs["report"]
    assert report["resolved"] is ours.resolved
    assert sorted(report["tests_status"]["FAIL_TO_PASS"]["success"]) == sorted(ours.fixed)
    assert sorted(report["tests_status"]["PASS_TO_PASS"]["success"]) == sorted(ours.kept)
    return ours.resolved


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
