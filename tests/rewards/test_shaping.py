"""Shaping composes parts and never makes a failure a zero."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.rewards.shaping import gated, gated_return, partial_credit
from palestra.trajectories.model import Score

INVALID = Score(None, False, {"fail_to_pass": 1.0})


def score(value: float, **parts: float) -> Score:
    return Score(value, True, parts, "g", "1", "e")


@pytest.mark.parametrize(("outcome", "total"), [(1.0, 1.3), (0.99, 0.99), (0.0, 0.0), (2.0, 2.3)])
def test_small_rewards_count_once_the_gate_is_open(outcome: float, total: float) -> None:
    assert gated_return(outcome, [0.1, 0.2]) == pytest.approx(total)


def test_gated_score_keeps_the_outcome_and_its_parts() -> None:
    shaped = gated(score(1.0, tools=0.5, other=9.0), {"tools": 0.2, "absent": 7.0})
    assert shaped.value == pytest.approx(1.1)
    assert shaped.parts == {"outcome": 1.0, "tools": 0.5, "other": 9.0} and shaped.evidence == "e"
    assert gated(score(0.5, tools=0.5), {"tools": 0.2}).value == 0.5
    assert gated(score(0.5, tools=0.5), {"tools": 0.2}, delta=0.5).value == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("value", "fixed", "kept", "shaped"),
    [
        (0.0, 0.5, 1.0, 0.15),
        (0.0, 0.5, 0.9, 0.0),
        (1.0, 1.0, 1.0, 1.0),
        (0.0, 0.0, 1.0, 0.0),
        (0.0, 1.0, 0.0, 0.0),
    ],
)
def test_partial_credit_needs_nothing_broken(value: float, fixed: float, kept: float, shaped: float) -> None:
    assert partial_credit(score(value, fail_to_pass=fixed, pass_to_pass=kept)).value == pytest.approx(shaped)


@given(st.floats(0, 1), st.floats(0, 0.99))
def test_some_tests_are_never_worth_as_much_as_all(fixed: float, weight: float) -> None:
    value = partial_credit(score(0.0, fail_to_pass=fixed, pass_to_pass=1.0), weight).value
    assert value is not None and 0 <= value < 1


@pytest.mark.parametrize("weight", [1.0, -0.1])
def test_weights_that_cannot_be(weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be"):
        partial_credit(score(0.0), weight)


def test_what_was_not_measured_is_not_shaped() -> None:
    assert gated(INVALID, {"fail_to_pass": 1.0}) is INVALID and partial_credit(INVALID) is INVALID
