"""What the comparison of estimators says of numbers made up here."""

from __future__ import annotations

import math

import pytest

from learning import Budget, Run, figures, gains, interval, markdown, rows

RUNS = [
    Run("grpo", 0, [0.2, 0.4, 0.6], 4.0),
    Run("gigpo", 0, [0.2, 0.5, 0.8], 3.0),
    Run("grpo", 1, [0.4, 0.6, 0.8], 4.0),
    Run("gigpo", 1, [0.4, 0.7, 1.0], 3.0),
]


def test_an_interval_is_students() -> None:
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(
        (2.0, 2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3))
    )
    assert math.isnan(interval([1.0])[1])


def test_differences_are_taken_seed_by_seed() -> None:
    """Seeds differ far more than estimators do, and that cancels."""
    assert gains(RUNS, "gigpo", "end") == pytest.approx((0.2, 0.2, 0.2))
    assert gains(RUNS, "gigpo", "curve") == pytest.approx((0.15, 0.15, 0.15))
    assert gains(RUNS, "grpo", "end") == (0.0, 0.0, 0.0)


def test_the_table() -> None:
    heading, first, second = rows(RUNS, Budget(steps=2, look_every=1))
    assert heading[:4] == ["estimator", "step 0", "step 1", "step 2"]
    assert first[:4] == ["grpo", "30.0%", "50.0%", "70.0%"] and first[5] == ""
    assert second[5].startswith("+15.0 (") and second[-1] == "3.00"
    assert markdown(RUNS, Budget(steps=2, look_every=1)).splitlines()[1].count("---") == len(heading)


def test_the_figures() -> None:
    got = figures(RUNS)
    assert got["end"]["gigpo"][0] == pytest.approx(0.9) and got["end_gain"].keys() == {"gigpo"}
    assert len(got["runs"]) == 4
