"""Rewards of single GUI actions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.rewards.score import GraderError
from palestra.rewards.web_actions import action_reward, grounding_accuracy, hits, step_efficiency, text_f1

GOLD = {"type": "type", "target": (10, 10, 20, 8), "value": "a blue lamp"}


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({}, 1.0),
        ({"type": "click"}, 0.0),
        ({"target": (5, 5)}, 0.2),
        ({"target": None}, 0.2),
        ({"value": "a red lamp"}, 0.7 + 0.3 * 2 / 3),
        ({"value": None}, 0.7),
        ({"target": (12, 11, 4, 4)}, 1.0),
    ],
)
def test_a_level_counts_only_after_those_before_it(change: dict[str, Any], value: float) -> None:
    score = action_reward(GOLD | {"target": (20, 14)} | change, GOLD)
    assert score.value == pytest.approx(value) and score.valid


def test_levels_that_the_gold_lacks_are_left_out() -> None:
    assert action_reward({"type": "back"}, {"type": "back"}).value == 1.0
    assert (
        action_reward({"type": "click", "target": "Save"}, {"type": "click", "target": "Save"}).value == 1.0
    )


@pytest.mark.parametrize("gold", [(1,), (1, 2, 3), (float("nan"), 1), None])
def test_a_bad_gold_target_is_no_zero(gold: Any) -> None:
    with pytest.raises(GraderError, match="a gold target is"):
        hits((1, 1), gold)


@pytest.mark.parametrize("got", ["12", (1,), None, (float("inf"), 2), ("a", "b"), 7])
def test_a_bad_target_misses(got: Any) -> None:
    assert not hits(got, (5, 5))


def test_grounding_accuracy() -> None:
    assert grounding_accuracy([(1, 1), (90, 90)], [(2, 2), (1, 1)]) == 0.5
    with pytest.raises(ValueError, match="at least one"):
        grounding_accuracy([], [])


def test_step_efficiency() -> None:
    assert [step_efficiency(1.0, n, 4) for n in (3, 4, 5, 100)] == [1.0, 1.0, 0.8, 0.5]
    assert step_efficiency(0.0, 4, 4) == 0.0
    with pytest.raises(ValueError, match="at least 1"):
        step_efficiency(1.0, 0, 4)


@given(st.text(), st.text())
def test_text_f1_is_symmetric_and_bounded(one: str, other: str) -> None:
    assert text_f1(one, other) == text_f1(other, one)
    assert 0.0 <= text_f1(one, other) <= 1.0 and text_f1(one, one) == 1.0
