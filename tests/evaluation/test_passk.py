from math import comb, isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.evaluation.errors import (
    DuplicateRolloutError,
    NoScoresError,
    TooFewAttemptsError,
)
from palestra.evaluation.passk import (
    Outcomes,
    collect,
    mean_reward,
    pass_at_k,
    task_interval,
    unbiased_pass_at_k,
    wilson_interval,
)
from palestra.trajectories.model import Failure, Rollout, Score


def rollout(name: str, task: str, score: Score | None) -> Rollout:
    failure = None if score else Failure("sandbox", "create", "no space left")
    return Rollout(name, "run", "g", task, 0, 0, "eval", "tool-loop", "1", "tokens", 0, score, failure)


def test_pass_at_k_against_hand_computed_values() -> None:
    assert unbiased_pass_at_k(5, 2, 1) == pytest.approx(0.4)
    assert unbiased_pass_at_k(5, 2, 2) == pytest.approx(1 - 3 / 10)
    assert unbiased_pass_at_k(5, 2, 3) == pytest.approx(1 - 1 / 10)
    assert unbiased_pass_at_k(5, 2, 4) == 1.0
    assert unbiased_pass_at_k(7, 0, 7) == 0.0


@given(st.integers(1, 60), st.data())
def test_pass_at_k_is_the_combinatorial_formula(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert unbiased_pass_at_k(n, c, k) == pytest.approx(1 - comb(n - c, k) / comb(n, k), abs=1e-12)


def test_pass_at_k_stays_exact_where_the_binomials_overflow_a_float() -> None:
    expected = 1 - comb(19_990, 5_000) / comb(20_000, 5_000)  # exact integers, divided once
    assert unbiased_pass_at_k(20_000, 10, 5_000) == pytest.approx(expected, rel=1e-9)


@given(st.integers(1, 30), st.data())
def test_pass_at_k_rises_with_k(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    values = [unbiased_pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert all(b >= a - 1e-12 for a, b in zip(values, values[1:], strict=False))


@pytest.mark.parametrize("args", [(0, 0, 1), (4, 5, 1), (4, 1, 5), (4, 1, 0), (4, -1, 1)])
def test_impossible_counts_are_refused(args: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="need 1 <= k"):
        unbiased_pass_at_k(*args)


def test_wilson_against_published_values() -> None:
    # Newcombe 1998, Statistics in Medicine 17:857, table I, method 3.
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson_interval(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)


def test_failures_and_invalid_scores_are_counted_apart_and_are_no_zeros() -> None:
    good, bad = Score(1.0, True), Score(0.0, True)
    outcomes = collect(
        [
            rollout("1", "a", good),
            rollout("2", "a", None),
            rollout("3", "b", bad),
            rollout("4", "b", Score(None, False)),
            rollout("5", "c", None),
        ]
    )
    estimate = pass_at_k(outcomes)
    assert (estimate.value, estimate.tasks, estimate.rollouts, estimate.failed) == (0.5, 2, 2, 3)
    assert mean_reward(outcomes).value == 0.5


def test_nothing_scored_is_an_error_not_a_zero() -> None:
    with pytest.raises(NoScoresError, match="1 failed"):
        pass_at_k(collect([rollout("1", "a", None)]))


def test_the_same_rollout_twice_is_refused() -> None:
    one = rollout("1", "a", Score(1.0, True))
    with pytest.raises(DuplicateRolloutError, match="'1'"):
        collect([one, one])


def test_pass_at_k_of_too_few_attempts_names_the_task_and_the_way_out() -> None:
    outcomes = Outcomes({"a": [1.0, 0.0], "b": [0.0]}, {"b": 1})
    with pytest.raises(TooFewAttemptsError, match=r"'b' with 1 \(and 1 failed\).*where_attempts\(2\)"):
        pass_at_k(outcomes, 2)
    estimate = pass_at_k(outcomes.where_attempts(2), 2)
    assert (estimate.value, estimate.tasks, estimate.rollouts) == (1.0, 1, 2)


def test_every_task_weighs_the_same_whatever_its_attempts() -> None:
    outcomes = Outcomes({"a": [1.0] * 8, "b": [0.0], "c": [0.0, 1.0]})
    assert pass_at_k(outcomes).value == pytest.approx(0.5)
    assert mean_reward(outcomes).value == pytest.approx(0.5)


def test_the_success_threshold_decides() -> None:
    outcomes = Outcomes({"a": [0.5], "b": [0.4]})
    assert pass_at_k(outcomes).value == 0.0
    assert pass_at_k(outcomes, success=0.5).value == 0.5


def test_one_attempt_per_task_gets_the_wilson_interval() -> None:
    outcomes = Outcomes({str(i): [float(i < 15)] for i in range(148)})
    estimate = pass_at_k(outcomes)
    assert (estimate.low, estimate.high) == pytest.approx((0.0624, 0.1605), abs=5e-5)


def test_agreement_of_all_tasks_is_not_certainty() -> None:
    solved = Outcomes({str(i): [1.0] * 4 for i in range(10)})
    estimate = pass_at_k(solved)
    assert (estimate.value, estimate.high) == (1.0, 1.0)
    assert estimate.low == pytest.approx(wilson_interval(10, 10)[0])
    assert isnan(mean_reward(solved).low) and isnan(mean_reward(solved).high)


def test_agreement_up_to_rounding_is_agreement() -> None:
    low, high = task_interval(np.array([0.1 + 0.2, 0.3]), floor=0.0, ceiling=1.0)
    assert low < 0.2 and high > 0.5


@given(
    st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=5), min_size=2, max_size=12),
)
def test_estimates_are_reproducible_ordered_and_within_the_scale(rows: list[list[float]]) -> None:
    outcomes = Outcomes({str(i): r for i, r in enumerate(rows)})
    estimate = pass_at_k(outcomes, resamples=200)
    assert estimate == pass_at_k(outcomes, resamples=200)
    assert 0.0 <= estimate.low <= estimate.high <= 1.0


def test_the_bootstrap_works_in_chunks_without_changing_its_size() -> None:
    values = np.linspace(0, 1, 3001)
    low, high = task_interval(values, floor=0.0, ceiling=1.0, resamples=1500)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), abs=0.1 * half)


def simulate(rng: np.random.Generator, tasks: int, attempts: int) -> Outcomes:
    """Tasks of Beta(0.5, 0.5) difficulty: mean success 0.5, attempts at one task much alike."""
    chances = rng.beta(0.5, 0.5, size=tasks)
    wins = rng.random((tasks, attempts)) < chances[:, None]
    return Outcomes({str(i): row.astype(float).tolist() for i, row in enumerate(wins)})


def test_coverage_of_the_clustered_bootstrap_where_treating_attempts_as_independent_fails() -> None:
    rng, hits, naive_hits, runs = np.random.default_rng(7), 0, 0, 300
    for _ in range(runs):
        outcomes = simulate(rng, 50, 8)
        estimate = pass_at_k(outcomes, resamples=500)
        hits += estimate.low <= 0.5 <= estimate.high
        low, high = wilson_interval(int(sum(map(sum, outcomes.rewards.values()))), 400)
        naive_hits += low <= 0.5 <= high
    assert hits / runs >= 0.91
    assert naive_hits / runs < 0.75


@pytest.mark.parametrize("chance", [0.03, 0.5, 0.9])
def test_coverage_of_the_wilson_interval(chance: float) -> None:
    rng = np.random.default_rng(1)
    wins = rng.binomial(40, chance, size=2000)
    covered = [low <= chance <= high for low, high in (wilson_interval(int(w), 40) for w in wins)]
    assert 0.93 <= np.mean(covered) <= 0.99
