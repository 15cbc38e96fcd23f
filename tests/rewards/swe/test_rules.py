"""The rules of SWE-bench, one row each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.rewards.swe.rules import judge, status_of

STATUSES = ["passed", "failed", "error", "skipped", "xfailed", "xpassed"]


@pytest.mark.parametrize(
    ("status", "fixed", "kept"),
    [
        ("passed", True, True),
        ("xfailed", True, True),
        ("skipped", False, True),
        ("xpassed", False, False),
        ("failed", False, False),
        ("error", False, False),
        (None, False, False),
    ],
)
def test_what_counts(status: str | None, fixed: bool, kept: bool) -> None:
    statuses = {"t": status} if status else {}
    assert judge(statuses, ["t"], []).resolved is fixed
    assert judge(statuses, [], ["t"]).resolved is kept


@pytest.mark.parametrize(
    ("a", "b", "c", "resolution"),
    [
        ("passed", "passed", "passed", "full"),
        ("passed", "failed", "passed", "partial"),
        ("failed", "failed", "passed", "no"),
        ("passed", "passed", "failed", "no"),
    ],
)
def test_resolution(a: str, b: str, c: str, resolution: str) -> None:
    assert judge({"a": a, "b": b, "c": c}, ["a", "b"], ["c"]).resolution == resolution


@pytest.mark.parametrize(
    ("test", "statuses", "status"),
    [
        ("t[log(photon", {"t[log(photon cm-2)]": "passed"}, "passed"),
        ("t[a", {"t[ab]": "passed", "t[ac]": "xfailed"}, "passed"),
        ("t[a", {"t[ab]": "passed", "t[ac]": "failed"}, None),
        ("t[a", {"t[b]": "passed"}, None),
        ("t", {"t[a]": "passed"}, None),
        ("t[a]", {"t[a]x": "passed"}, None),
    ],
)
def test_truncated_ids_stand_for_all_that_agree(
    test: str, statuses: dict[str, str], status: str | None
) -> None:
    assert status_of(test, statuses) == status


tests = st.sampled_from("abcd")


@given(st.dictionaries(tests, st.sampled_from(STATUSES)), st.sets(tests), st.sets(tests))
def test_shares_add_up(statuses: dict[str, str], fail: set[str], keep: set[str]) -> None:
    verdict = judge(statuses, fail, keep)
    assert {*verdict.fixed, *verdict.not_fixed} == fail and {*verdict.kept, *verdict.not_kept} == keep
    assert verdict.resolved == (verdict.fix_rate == 1 and verdict.keep_rate == 1)
