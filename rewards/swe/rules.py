"""From test results to a verdict, by the rules of SWE-bench.

Source: swebench 5.0, harness/grading.py. A test that must come to pass counts when it passed or failed as
expected; one that is missing, skipped or in error does not. A test that must go on passing may also be skipped. An id
that ends in the middle of its parameters ("test_x[log(photon") stands for all that begin like it, if they agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

PASSING = frozenset({"passed", "xfailed"})
Resolution = Literal["full", "partial", "no"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which tests came out as they should."""

    fixed: tuple[str, ...]
    not_fixed: tuple[str, ...]
    kept: tuple[str, ...]
    not_kept: tuple[str, ...]

    @property
    def fix_rate(self) -> float:
        """Share of fail-to-pass tests that pass; 1 where there are none."""
        return _share(self.fixed, self.not_fixed)

    @property
    def keep_rate(self) -> float:
        """Share of pass-to-pass tests that still pass or are skipped; 1 where there are none."""
        return _share(self.kept, self.not_kept)

    @property
    def resolution(self) -> Resolution:
        """full: all tests are right; partial: some fail-to-pass tests pass and nothing broke."""
        if self.not_kept:
            return "no"
        if not self.not_fixed:
            return "full"
        return "partial" if self.fixed else "no"

    @property
    def resolved(self) -> bool:
        """Whether the resolution is full."""
        return self.resolution == "full"


def judge(statuses: Mapping[str, str], fail_to_pass: Iterable[str], pass_to_pass: Iterable[str]) -> Verdict:
    """The verdict on {test id: status} (see `run_tests.py` for the statuses)."""
    fixed, not_fixed = _parted(fail_to_pass, statuses, PASSING)
    kept, not_kept = _parted(pass_to_pass, statuses, PASSING | {"skipped"})
    return Verdict(fixed, not_fixed, kept, not_kept)


def status_of(test: str, statuses: Mapping[str, str]) -> str | None:
    """The status of a test, also by an id that was truncated; None where it did not run."""
    if test in statuses:
        return statuses[test]
    if test.count("[") > test.count("]"):
        found = [s for name, s in statuses.items() if name.startswith(test)]
        if found and len({s in PASSING for s in found}) == 1:
            return found[0]
    return None


def _parted(
    tests: Iterable[str], statuses: Mapping[str, str], good: frozenset[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(tests whose status is good, the others)."""
    right: list[str] = []
    wrong: list[str] = []
    for test in tests:
        (right if status_of(test, statuses) in good else wrong).append(test)
    return tuple(right), tuple(wrong)


def _share(good: tuple[str, ...], bad: tuple[str, ...]) -> float:
    return len(good) / (len(good) + len(bad)) if good or bad else 1.0
