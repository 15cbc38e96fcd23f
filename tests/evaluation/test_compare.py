from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.evaluation.compare import compare, mcnemar_p
from palestra.evaluation.errors import NotComparableError
from palestra.evaluation.passk import Outcomes, collect
from palestra.tasks.task import Task
from palestra.trajectories.model import Failure, Rollout, Score

RUNS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=3)
)


def test_mcnemar_against_hand_computed_values() -> None:
    assert mcnemar_p(5, 0) == pytest.approx(2 / 32)
    assert mcnemar_p(0, 5) == mcnemar_p(5, 0)
    assert mcnemar_p(8, 2) == pytest.approx(2 * (1 + 10 + 45) / 1024)
    assert mcnemar_p(3, 3) == 1.0
    assert mcnemar_p(0, 0) == 1.0
    assert mcnemar_p(1500, 1500) == 1.0


def test_difference_and_the_tasks_that_changed() -> None:
    before = {"a": [0.0], "b": [1.0], "c": [0.0], "d": [1.0], "old": [1.0]}
    after = {"a": [1.0], "b": [1.0], "c": [1.0], "d": [0.0], "new": [0.0], "broken": []}
    result = compare(before, after)
    assert result.difference == pytest.approx(0.25)
    assert (result.improved, result.worsened) == (("a", "c"), ("d",))
    assert (result.only_before, result.only_after) == (("old",), ("new",))
    assert (result.before.value, result.after.value, result.before.tasks) == (0.5, 0.75, 4)
    assert result.p_value == pytest.approx(mcnemar_p(2, 1))
    assert result.low <= result.difference <= result.high


def test_rewards_are_paired_by_task_not_by_order() -> None:
    before = {"a": [0.0], "b": [1.0]}
    after = {"b": [1.0], "a": [0.0]}
    result = compare(before, after)
    assert result.improved == result.worsened == ()


def test_several_attempts_give_no_mcnemar_p() -> None:
    result = compare({"a": [0.0, 1.0], "b": [0.0]}, {"a": [1.0, 1.0], "b": [0.0]})
    assert result.p_value is None
    assert result.difference == pytest.approx(0.25)


def test_equal_rates_from_different_numbers_of_attempts_are_no_change() -> None:
    result = compare({"a": [1.0, 0.0, 0.0]}, {"a": [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]})
    assert (result.improved, result.worsened) == ((), ())


def test_no_change_is_not_a_certain_zero() -> None:
    same = {str(i): [float(i % 2)] for i in range(50)}
    result = compare(same, same)
    unseen = 1.96**2 / (50 + 1.96**2)
    assert (result.difference, result.p_value) == (0.0, 1.0)
    assert (result.low, result.high) == pytest.approx((-unseen, unseen), abs=1e-3)


def test_runs_without_a_common_task_are_refused() -> None:
    with pytest.raises(NotComparableError, match=r"before has 1 \('a'\), after has 1 \('b'\)"):
        compare({"a": [1.0]}, {"b": [1.0]})
    with pytest.raises(NotComparableError, match="after has none"):
        compare({"a": [1.0]}, {"a": []})


def test_a_task_whose_content_changed_is_refused() -> None:
    before = Outcomes({"a": [1.0], "b": [0.0]}, {}, {"a": "11", "b": "22"})
    after = Outcomes({"a": [1.0], "b": [0.0]}, {}, {"a": "11", "b": "99"})
    with pytest.raises(NotComparableError, match=r"1 \('b'\) of 2 shared tasks changed"):
        compare(before, after)


def test_two_runs_over_a_changed_task_are_refused() -> None:
    def run(task: Task) -> Outcomes:
        rollout = Rollout("r", "run", "g", "a", 0, 0, "eval", "h", "1", "tokens", 0, Score(1.0, True))
        return collect([replace(rollout, task_hash=task.content_hash)])

    old = Task(id="a", family="sql", env="palestra/Sql-v0", split="test", instruction="How many?")
    new = old.model_copy(update={"instruction": "How many orders?"})
    assert compare(run(old), run(old)).content_checked
    with pytest.raises(NotComparableError, match="changed their content"):
        compare(run(old), run(new))


def test_content_is_reported_as_checked_only_where_every_task_was() -> None:
    known = Outcomes({"a": [1.0], "b": [0.0]}, {}, {"a": "11", "b": "22"})
    partly = Outcomes({"a": [1.0], "b": [0.0]}, {}, {"a": "11"})
    assert compare(known, known).content_checked
    assert not compare(known, partly).content_checked


def test_a_task_that_changed_but_is_not_shared_does_not_matter() -> None:
    before = Outcomes({"a": [1.0], "b": [0.0]}, {}, {"a": "11", "b": "22"})
    after = Outcomes({"a": [1.0]}, {"b": 4}, {"a": "11", "b": "99"})
    result = compare(before, after)
    assert (result.only_before, result.after.failed) == (("b",), 0)


def test_a_failed_rollout_is_not_a_loss() -> None:
    def run(score: Score | None) -> Outcomes:
        failure = None if score else Failure("grader", "grade", "the gold answer does not run")
        one = Rollout("r", "run", "g", "a", 0, 0, "eval", "h", "1", "tokens", 0, score, failure)
        two = Rollout("s", "run", "g", "b", 0, 0, "eval", "h", "1", "tokens", 0, Score(1.0, True), None)
        return collect([one, two])

    result = compare(run(Score(1.0, True)), run(None))
    assert (result.difference, result.worsened, result.only_before) == (0.0, (), ("a",))


@given(RUNS, RUNS)
def test_swapping_the_runs_swaps_the_answer(
    before: dict[str, list[float]], after: dict[str, list[float]]
) -> None:
    if not set(before) & set(after):
        return
    there, back = compare(before, after, resamples=100), compare(after, before, resamples=100)
    assert there.difference == pytest.approx(-back.difference)
    assert (there.improved, there.worsened) == (back.worsened, back.improved)
    assert there.p_value == back.p_value
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


def test_coverage_of_the_paired_interval() -> None:
    rng, hits, runs = np.random.default_rng(3), 0, 300
    for _ in range(runs):
        chance = rng.beta(0.5, 0.5, size=60) * 0.8
        first, second = rng.random(60) < chance, rng.random(60) < chance + 0.1
        result = compare(
            {str(i): [float(x)] for i, x in enumerate(first)},
            {str(i): [float(x)] for i, x in enumerate(second)},
            resamples=500,
        )
        hits += result.low <= 0.1 <= result.high
    assert hits / runs >= 0.91
