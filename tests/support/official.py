"""The official grader of SWE-bench, asked in its own virtual environment (tests/services/swebench.sh)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from needs import need
from palestra.rewards.swe.predictions import official_ids
from palestra.rewards.swe.rules import judge
from palestra.rewards.swe.suite import SuiteRun
from palestra.tasks.swe.repair import repair_of
from palestra.tasks.task import Task

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parents[1] / ".cache" / "swebench" / "bin" / "python"


def official(log: str, fail: list[str], keep: list[str], predictions: Path | None = None) -> dict[str, Any]:
    """What the official harness makes of the output of a test command."""
    need(
        (PYTHON.parents[1] / "complete").exists(),
        "swebench in .cache/swebench: run tests/services/swebench.sh",
    )
    asked = {
        "log": f">>>>> Start Test Output\n{log}\n>>>>> End Test Output\n",
        "fail_to_pass": fail,
        "pass_to_pass": keep,
        "predictions": str(predictions) if predictions else None,
    }
    script = HERE / "official_swebench.py"
    done = subprocess.run(
        [PYTHON, script], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def agrees(run: SuiteRun, of: Task) -> bool:
    """Whether a run resolves the task, after a look at whether the official verdict on its output is ours.

    Ids that the official parser cuts off at a blank may stand for several tests; those that disagree are left out.
    """
    repair = repair_of(of)
    ours = judge(run.statuses, repair.fail_to_pass, repair.pass_to_pass)
    fail, keep = official_ids(repair.fail_to_pass), official_ids(repair.pass_to_pass)
    report = official(run.log, fail, keep)["report"]
    mixed = {*official_ids((*ours.fixed, *ours.kept))} & {*official_ids((*ours.not_fixed, *ours.not_kept))}
    status = report["tests_status"]
    assert {*status["FAIL_TO_PASS"]["success"]} - mixed == {*official_ids(ours.fixed)} - mixed
    assert {*status["PASS_TO_PASS"]["success"]} - mixed == {*official_ids(ours.kept)} - mixed
    assert len(mixed) <= 0.05 * len(fail + keep)
    assert mixed or report["resolved"] is ours.resolved
    return ours.resolved
