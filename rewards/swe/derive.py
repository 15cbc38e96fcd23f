"""Which tests decide: run the suite without and with the known solution, several times, and compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from palestra.rewards.swe.machine import Machine, MachineError
from palestra.rewards.swe.rules import PASSING
from palestra.rewards.swe.suite import SuiteRun, run_suite
from palestra.rewards.swe.worktree import PatchError
from palestra.tasks.swe.repair import Repair

MachineOf = Callable[[Repair], Machine]


class RejectedError(ValueError):
    """Raised for a candidate that is no task; says why."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A repair whose deciding tests are known."""

    repair: Repair
    flaky: tuple[str, ...]
    """Tests that did not come out the same each time; they decide nothing."""
    failures: dict[str, str]
    """What each fail-to-pass test says on the broken tree."""


def derive(repair: Repair, machine_of: MachineOf, repeats: int = 2) -> Derived:
    """Fill in `fail_to_pass` and `pass_to_pass`. Raises RejectedError.

    A test that gave different results in two runs of the same tree is left out.
    """
    patch = repair.patch.encode("utf-8", "surrogateescape")
    fixed = [run_whole(repair, machine_of, patch) for _ in range(repeats)]
    broken = [run_whole(repair, machine_of, b"") for _ in range(repeats)]
    return compare(repair, fixed, broken)


def compare(repair: Repair, fixed: Sequence[SuiteRun], broken: Sequence[SuiteRun]) -> Derived:
    """The same from runs of the suite with and without the solution. Raises RejectedError."""
    flaky = _unsteady(fixed) | _unsteady(broken)
    good = {test for test, status in fixed[0].statuses.items() if status in PASSING} - flaky
    was_good = {test for test, status in broken[0].statuses.items() if status in PASSING}
    if not good - was_good:
        raise RejectedError("no test fails without the solution and passes with it")
    update = {"fail_to_pass": tuple(sorted(good - was_good)), "pass_to_pass": tuple(sorted(good & was_good))}
    failures = {t: broken[0].messages[t] for t in sorted(good - was_good) if t in broken[0].messages}
    return Derived(repair.model_copy(update=update), tuple(sorted(flaky)), failures)


def run_whole(repair: Repair, machine_of: MachineOf, patch: bytes) -> SuiteRun:
    """The suite on a fresh machine with a diff applied. Raises RejectedError where it does not run to its end."""
    with closing(machine_of(repair)) as machine:
        try:
            run = run_suite(machine, repair, patch)
        except (PatchError, MachineError) as error:
            raise RejectedError(str(error)) from error
    what = "with the solution" if patch else "without the solution"
    if not run.reported or not run.finished:
        why = "ran out of time" if run.timed_out else f"did not run to its end: {run.log[-400:]}"
        raise RejectedError(f"{what} the suite {why}")
    if run.tampering:
        raise RejectedError(f"{what} the test machinery is not what it was: {', '.join(run.tampering[:3])}")
    return run


def _unsteady(runs: Sequence[SuiteRun]) -> set[str]:
    tests = {test for run in runs for test in run.statuses}
    return {t for t in tests if len({run.statuses.get(t) for run in runs}) > 1}
