"""Grading a repair: the diff alone, on a machine that no agent has touched.

A submission scores 1 when every fail-to-pass test passes and every pass-to-pass test still does, by the rules of
SWE-bench (`rules.py`). The diff is applied to the broken tree, tests and their configuration are put back as they
were, and results are read from a report outside the tree, which the runner writes after all that the tests started is
dead (`run_tests.py`). A diff that breaks the run (it does not apply, the process ends early, time runs out, the test
machinery was tampered with) is a valid 0. A run without a report is held against a run without the diff: where that
one reports, the diff is to blame and the score is 0; where it does not, nothing was measured and there is no score.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from palestra.rewards.score import GraderError, nothing_submitted
from palestra.rewards.swe.machine import FreshMachine, MachineError
from palestra.rewards.swe.rules import Verdict, judge
from palestra.rewards.swe.suite import SuiteRun, run_suite
from palestra.rewards.swe.worktree import PatchError
from palestra.tasks.errors import TaskError
from palestra.tasks.swe.repair import Repair, repair_of
from palestra.tasks.task import Task
from palestra.trajectories.model import Score

_SHOWN = 5
_ELSEWHERE = "write predictions (palestra.rewards.swe.predictions) for the benchmark's own grader"


class RepairTests:
    """The grader of repair tasks. A submission is a git diff, text or bytes; an empty one is nothing."""

    name = "swe-tests"
    version = "1"

    def __init__(self, fresh: FreshMachine) -> None:
        """`fresh` makes a machine with the broken tree of a task, as `worktree.prepare` leaves it."""
        self._fresh = fresh

    def __call__(self, task: Task, submission: Any) -> Score:
        """Score a diff. Raises GraderError where the machine, the task or the suite is at fault."""
        repair = _repair(task)
        if repair.suite.runner != "pytest":
            raise GraderError(f"task {task.id!r}: its tests do not run here; {_ELSEWHERE}")
        patch = _bytes(submission)
        if not patch.strip():
            return nothing_submitted(self)
        try:
            run = self.run(task, patch)
        except PatchError as error:
            return self._zero(f"the diff does not apply: {error}")
        if not run.reported:
            return self._unreported(task, run)
        return self._judged(judge(run.statuses, repair.fail_to_pass, repair.pass_to_pass), run)

    def run(self, task: Task, patch: bytes) -> SuiteRun:
        """The tests with a diff applied. Raises PatchError, and GraderError where ours fails."""
        try:
            with closing(self._fresh(task)) as machine:
                return run_suite(machine, _repair(task), patch)
        except (MachineError, OSError) as error:
            raise GraderError(f"task {task.id!r}: {error}") from error

    def _judged(self, verdict: Verdict, run: SuiteRun) -> Score:
        parts = {"fail_to_pass": verdict.fix_rate, "pass_to_pass": verdict.keep_rate}
        if run.tampering:
            what = ", ".join(run.tampering[:_SHOWN])
            return Score(
                0.0, True, parts, self.name, self.version, f"the test machinery was tampered with: {what}"
            )
        return Score(float(verdict.resolved), True, parts, self.name, self.version, _evidence(verdict, run))

    def _unreported(self, task: Task, run: SuiteRun) -> Score:
        """No report: the diff's fault where the suite reports without it."""
        control = self.run(task, b"")
        if not control.reported:
            raise GraderError(f"task {task.id!r}: the test suite did not run: {run.log[-500:]}")
        why = "the tests ran out of time" if run.timed_out else "the tests ended without a report"
        return self._zero(f"{why}, which they do not without the diff")

    def _zero(self, why: str) -> Score:
        parts = {"fail_to_pass": 0.0, "pass_to_pass": 0.0}
        return Score(0.0, True, parts, self.name, self.version, why)


def _repair(task: Task) -> Repair:
    try:
        return repair_of(task)
    except TaskError as error:
        raise GraderError(str(error)) from error


def _bytes(submission: Any) -> bytes:
    if submission is None:
        return b""
    if isinstance(submission, str):
        return submission.encode("utf-8", "surrogateescape")
    if isinstance(submission, bytes):
        return submission
    raise GraderError(f"a submission is a diff, text or bytes, got {type(submission).__name__}")


def _evidence(verdict: Verdict, run: SuiteRun) -> str:
    wrong = [*verdict.not_fixed, *verdict.not_kept]
    total = len(verdict.fixed) + len(verdict.kept) + len(wrong)
    said = f"{total - len(wrong)} of {total} tests are right"
    if wrong:
        shown = [f"{test} {run.statuses.get(test, 'did not run')}" for test in wrong[:_SHOWN]]
        said += ": " + ", ".join(shown) + (", ..." if len(wrong) > _SHOWN else "")
    if run.timed_out:
        said += "; time ran out"
    elif not run.finished:
        said += "; the tests ended early"
    return said + (f"; put back: {', '.join(run.undone[:_SHOWN])}" if run.undone else "")
