"""Samplers that learn, and the filters, allocators and schedules without a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.tasks.task import TaskSet
from palestra.training.samplers import (
    DifficultySampler,
    HorizonSchedule,
    PredictiveSampler,
    TaskSampler,
    TaskStates,
    ThompsonSampler,
    extra_rollouts,
    informative_rows,
    rollout_capacity,
)
from palestra.training.table import StepTable

MakeTasks = Callable[..., TaskSet]
LEARNING: list[Any] = [PredictiveSampler, ThompsonSampler, DifficultySampler]


def ids(sampler: TaskSampler, count: int) -> list[str]:
    return [task.id for task in sampler.propose(count)]


@pytest.mark.parametrize("kind", LEARNING)
class TestLearningSamplers:
    @given(rounds=st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=2), max_size=5))
    def test_a_restored_state_continues(
        self, kind: Any, parity_tasks: MakeTasks, rounds: list[list[float]]
    ) -> None:
        tasks = parity_tasks(7)
        sampler, restored = kind(tasks, 1), kind(tasks, 1)
        for rates in rounds:
            sampler.observe(dict(zip(ids(sampler, 2), ([r] for r in rates), strict=True)))
        restored.load_state_dict(orjson.loads(orjson.dumps(sampler.state_dict())))
        assert [ids(restored, 3) for _ in range(4)] == [ids(sampler, 3) for _ in range(4)]

    def test_tasks_that_are_solved_sometimes_come_more_often(
        self, kind: Any, parity_tasks: MakeTasks
    ) -> None:
        sampler, drawn = kind(parity_tasks(12), 0), []
        rates: dict[str, list[float]] = {f"t{i}": [0.0, 0.0] if i % 2 else [1.0, 1.0] for i in range(12)}
        rates |= {f"t{i}": [0.0, 1.0] for i in range(3)}
        for _ in range(40):
            chosen = ids(sampler, 3)
            sampler.observe({i: rates[i] for i in chosen})
            drawn += chosen
        share = sum(i in ("t0", "t1", "t2") for i in drawn[60:]) / len(drawn[60:])
        assert share > 0.5

    def test_more_than_there_are(self, kind: Any, parity_tasks: MakeTasks) -> None:
        got = ids(kind(parity_tasks(2), 0), 5)
        assert len(got) == 5 and set(got) == {"t0", "t1"}

    def test_a_task_without_a_valid_rollout_is_not_held_against_it(
        self, kind: Any, parity_tasks: MakeTasks
    ) -> None:
        """A failure of ours is never a score of 0."""
        one, other = kind(parity_tasks(3), 0), kind(parity_tasks(3), 0)
        one.observe({"t0": [1.0, 0.0], "t1": []})
        other.observe({"t0": [1.0, 0.0]})
        assert [ids(one, 2) for _ in range(5)] == [ids(other, 2) for _ in range(5)]

    def test_an_empty_set_is_refused(self, kind: Any) -> None:
        with pytest.raises(ValueError, match="task set 'none' is empty"):
            kind(TaskSet("none", []), 0)


def test_a_transition_thought_impossible_is_refused() -> None:
    """Once seen it would have probability 0 / 0, as with the prior "local" of DPS."""
    with pytest.raises(ValueError, match="prior counts must be positive"):
        TaskStates(prior=[[1, 1, 0], [1, 1, 1], [0, 1, 1]])


class TestDars:
    @given(st.floats(0, 1), st.integers(1, 32), st.integers(0, 64), st.booleans())
    def test_never_more_than_the_most(self, success: float, rollouts: int, more: int, by_std: bool) -> None:
        got = extra_rollouts(success, rollouts, rollouts + more, by_std=by_std)
        assert 0 <= got <= more
        assert got == 0 or success < 0.5

    def test_hard_tasks_get_more(self) -> None:
        got = [extra_rollouts(p, 8, 64) for p in (0.5, 0.25, 0.125, 0.0)]
        assert got == sorted(got) and got[0] == 0 < got[1]

    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="between 0 and 1, got 1.5"):
            extra_rollouts(1.5, 8, 16)
        with pytest.raises(ValueError, match="schedule is one of equal-treatment, hardness-weighted"):
            extra_rollouts(0.5, 8, 16, schedule="ET")  # type: ignore[arg-type]


def table(groups: Sequence[str], scores: Sequence[float], valid: Sequence[bool]) -> StepTable:
    size = len(groups)
    return StepTable.from_columns(
        group=groups,
        rollout=list(range(size)),
        turn=[0] * size,
        reward=scores,
        anchor=[None] * size,
        valid=valid,
    )


class TestDapo:
    rows = table(list("aabbccd"), [0.1, 0.1, 1, 0, 1, 0, 1], [True] * 4 + [True, False, True])

    def test_groups_without_spread_are_left_out(self) -> None:
        assert informative_rows(self.rows).tolist() == [False, False, True, True, False, False, False]

    def test_lone_rollouts_may_be_kept(self) -> None:
        got = informative_rows(self.rows, keep_lone=True)
        assert got.tolist() == [False, False, True, True, True, False, True]

    def test_a_least_deviation(self) -> None:
        assert not informative_rows(self.rows, min_std=0.6).any()


class TestHorizon:
    def test_the_last_stage_stays(self) -> None:
        assert [HorizonSchedule((5, 8), 2).at(step) for step in range(6)] == [5, 5, 8, 8, 8, 8]

    @pytest.mark.parametrize("arguments", [((), 1), ((5,), 0)])
    def test_refusals(self, arguments: Any) -> None:
        with pytest.raises(ValueError, match="stages of at least one step"):
            HorizonSchedule(*arguments)


class TestStaleness:
    @given(st.integers(0, 3), st.integers(1, 5), st.lists(st.booleans(), max_size=60))
    def test_no_rollout_is_older_than_allowed_when_trained(
        self, staleness: int, batch: int, finishes: list[bool]
    ) -> None:
        """Start as many as allowed, finish in order, train on every full batch."""
        version, accepted = 0, 0
        begun: list[int] = []
        for finish in finishes:
            free = rollout_capacity(
                version=version,
                batch=batch,
                max_staleness=staleness,
                accepted=accepted,
                running=len(begun) - accepted,
                max_running=100,
            )
            begun += [version] * free
            if finish and accepted < len(begun):
                accepted += 1
            if accepted == (version + 1) * batch:
                trained = begun[version * batch : accepted]
                assert all(version - born <= staleness for born in trained)
                version += 1

    def test_at_least_one_may_run(self) -> None:
        options: dict[str, Any] = {"version": 0, "batch": 4, "max_staleness": 0, "accepted": 0}
        assert rollout_capacity(**options, running=0, max_running=0) == 1
        assert rollout_capacity(**options, running=9, max_running=2) == 0
