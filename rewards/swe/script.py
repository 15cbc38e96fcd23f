"""Judging a machine by a script, as Harbor tasks do: tests/test.sh writes one number to /logs/verifier/reward.txt.

What is judged is the machine as the agent left it, without its processes: the script runs on a copy, its files are
written anew, what lies at the place of the reward is removed first, and only a finite number from 0 to 1 counts. The
script trusts the tools of that machine: it is easier to deceive than a suite run from a diff on a fresh one.
"""

from __future__ import annotations

import math
from contextlib import closing

from palestra.rewards.score import GraderError
from palestra.rewards.swe.machine import FreshMachine, Machine, checked
from palestra.tasks.swe.benchmarks import harbor_tests
from palestra.tasks.swe.repair import Repair, repair_of
from palestra.tasks.task import Task
from palestra.trajectories.model import Score

REWARDS = "/logs/verifier"
_GRACE_S = 15.0
_CLEAN = f"rm -rf {REWARDS} /tests && mkdir -p {REWARDS} /tests && chmod 777 {REWARDS}"


class ScriptVerdict:
    """The grader of tasks whose suite is a script. A submission is a machine that nobody needs any more."""

    name = "swe-script"
    version = "1"

    def __init__(self, fresh: FreshMachine) -> None:
        """`fresh` makes the machine that the agent began with."""
        self._fresh = fresh

    def __call__(self, task: Task, submission: Machine) -> Score:
        """Judge the machine, and close it.

        Raises GraderError where the script gives no number on a fresh one either.
        """
        repair = repair_of(task)
        with closing(submission) as machine:
            reward, said = _reward(machine, repair)
        if reward is not None:
            return Score(reward, True, {}, self.name, self.version, f"the script says {reward:g}")
        with closing(self._fresh(task)) as control:
            if _reward(control, repair)[0] is None:
                raise GraderError(f"task {task.id!r}: the script writes no number from 0 to 1: {said}")
        why = f"the script writes no number, which it does on a fresh machine: {said}"
        return Score(0.0, True, {}, self.name, self.version, why)


def _reward(machine: Machine, repair: Repair) -> tuple[float | None, str]:
    """(what the script wrote, the end of what it printed)."""
    checked(machine.exec(_CLEAN, user="root"), "making room for the script")
    for path, file in harbor_tests(repair.extra["folder"]).items():
        mode = 0o755 if path.endswith(".sh") or file.mode == "100755" else 0o644
        machine.write(f"/tests/{path}", file.data, mode, user="root")
    done = machine.exec(
        ["bash", "/tests/test.sh"],
        cwd=repair.workdir,
        timeout_s=repair.suite.timeout_s + _GRACE_S,
        user="root",
    )
    said = (done.stdout + done.stderr)[-400:].decode("utf-8", "replace")
    try:
        value = float(machine.read(f"{REWARDS}/reward.txt", 64, user="root"))
    except (OSError, ValueError):
        return None, said
    return (value, said) if math.isfinite(value) and 0 <= value <= 1 else (None, said)
