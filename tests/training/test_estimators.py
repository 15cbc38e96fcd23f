"""What must hold for every estimator of the registry, on any table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.training.advantages import Estimator, estimators
from palestra.training.table import StepTable

Array = npt.NDArray[Any]
WHOLE_BATCH = {
    "gpg",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "gae",
    "treepo",
    "tree_progress",
    "a3",
}
"""Normalised over the batch, so that groups do matter to one another."""
SCALE_FREE = {
    "grpo",
    "prorag",
    "passk_grpo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "gae",
    "gigpo",
    "hgpo",
    "ui_s1",
    "treepo",
    "tree_progress",
}
SCALES_ALONG = {
    "dr_grpo",
    "rloo",
    "vcpo",
    "opo",
    "gpg",
    "remax",
    "state_rloo",
    "optimal_token_baseline",
    "treeps_rag",
    "portool",
}
NOT_SHIFT_FREE = {"ui_s1", "spo"}
"""Credit is cut in the middle, or a value without siblings is kept as it is."""
CENTRED = {"grpo", "dr_grpo", "rloo", "gpg", "gigpo", "state_rloo"}
NOT_PER_GROUP = {"remax", "gae", "spo", "reinforce_plus_plus"}
"""Compare with something other than the rollouts of the task: a rollout alone may have credit."""
BY_DECISION = {"prorag", "reinforce_plus_plus", "gae", "tree_progress", "a3", "optimal_token_baseline"}
"""Statistics over decisions or positions, so that one decision more is one value more."""
UNDISCOUNTED = {"gigpo", "hgpo", "state_rloo", "reinforce_plus_plus", "gae", "ui_s1"}

quick = settings(max_examples=25, deadline=None)
every = pytest.mark.parametrize("name", estimators)


def make_table(seed: int, rollouts: int, steps: int, groups: int = 3) -> StepTable:
    """Random, with every optional column; rewards in quarters, some rollouts not valid, some anchors unknown."""
    random = np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {}
    for rollout in range(rollouts):
        group, valid, path = int(random.integers(groups)), bool(random.random() < 0.8), ""
        for turn in range(int(random.integers(1, steps + 1))):
            path += str(random.integers(2))
            row = {
                "group": group,
                "rollout": rollout,
                "turn": turn,
                "reward": random.integers(-4, 5) / 4,
                "anchor": [None, "s", "t", "u"][random.integers(4)],
                "valid": valid,
                "tokens": int(random.integers(1, 9)),
                "node": path,
                "action": ["a", "b", None][random.integers(3)],
                "matched": bool(random.random() < 0.7),
                "baseline": group / 4,
                "value": random.integers(-4, 5) / 4,
                "energy": random.random() + 0.1,
                "duration_s": random.random(),
                "logprob": -random.random(),
                "log_ratio": random.random() - 0.5,
                "process": random.integers(-4, 5) / 4,
                "weight": 1.0,
            }
            for column, value in row.items():
                columns.setdefault(column, []).append(value)
    return StepTable.from_columns(**columns)


def tables(steps: int = 4, groups: int = 3) -> st.SearchStrategy[StepTable]:
    return st.builds(
        make_table, st.integers(0, 2**32), st.integers(1, 12), st.integers(1, steps), st.just(groups)
    )


def taken(table: StepTable, index: Array | Sequence[int]) -> StepTable:
    """The rows at `index`, ids made dense again."""
    columns: dict[str, Any] = {name: values[index].tolist() for name, values in table.columns().items()}
    for name in ("anchor", "node", "action"):
        columns[name] = [None if a < 0 else a for a in columns[name]]
    return StepTable.from_columns(**columns)


def rewarded(table: StepTable, reward: Array, **extras: Array) -> StepTable:
    return replace(table, reward=reward, extras=dict(table.extras) | extras)


def undiscounted(name: str) -> dict[str, Any]:
    return {"gamma": 1.0} if name in UNDISCOUNTED else {}


def last_rows(table: StepTable) -> Array:
    order = table.time_order()
    ends: Array = order[np.flatnonzero(np.diff(table.rollout[order], append=-1))]
    return ends


@every
class TestEvery:
    @quick
    @given(table=tables(), seed=st.integers(0, 2**32))
    def test_permuting_rows_permutes_advantages(self, name: str, table: StepTable, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(table))
        got, permuted = estimators[name](table), estimators[name](taken(table, order))
        assert got.dtype == np.float32 and got.shape == (len(table),)
        assert permuted == pytest.approx(got[order], abs=2e-5)

    @quick
    @given(table=tables())
    def test_rollouts_that_are_not_valid_change_nothing_and_get_nothing(
        self, name: str, table: StepTable
    ) -> None:
        got = estimators[name](table)
        assert np.isfinite(got).all()
        assert (got[~table.valid] == 0).all()
        poisoned = rewarded(table, np.where(table.valid, table.reward, np.nan))
        assert np.array_equal(estimators[name](poisoned), got)
        kept = np.flatnonzero(table.valid)
        if len(kept):
            assert estimators[name](taken(table, kept)) == pytest.approx(got[kept], abs=2e-5)

    @quick
    @given(table=tables(groups=1))
    def test_a_batch_of_which_no_rollout_is_valid_gives_nothing(self, name: str, table: StepTable) -> None:
        failed = replace(table, valid=np.zeros(len(table), np.bool_))
        assert (estimators[name](failed) == 0).all()

    def test_no_rows(self, name: str) -> None:
        empty = taken(make_table(0, 2, 2), [])
        assert estimators[name](empty).shape == (0,)

    def test_a_column_that_is_missing_is_named(self, name: str) -> None:
        bare = replace(make_table(1, 6, 3), extras={})
        try:
            estimators[name](bare)
        except ValueError as error:
            assert re.search(
                r"column '\w+' is needed and not there: .*brings it as StepTable.from_columns", str(error)
            )

    def test_the_docstring_says_what_is_computed_and_where_it_is_from(self, name: str) -> None:
        text = estimators[name].__doc__ or ""
        assert " = " in text.split("\n")[0]
        assert "Returns float32 (S,)" in text
        assert any(word in text for word in ("Source", "Our own"))

    def test_an_unknown_quirk_is_refused(self, name: str) -> None:
        if takes_compat(estimators[name]):
            with pytest.raises(ValueError, match=r"compat names \['magic'\]"):
                estimators[name](make_table(1, 6, 3), compat="magic")


def takes_compat(estimator: Estimator) -> bool:
    code = getattr(estimator, "__code__", None)
    return code is not None and "compat" in code.co_varnames


@pytest.mark.parametrize("name", [n for n in estimators if n not in WHOLE_BATCH])
@quick
@given(table=tables())
def test_other_groups_do_not_matter(name: str, table: StepTable) -> None:
    mine = np.flatnonzero(table.group == 0)
    assert estimators[name](taken(table, mine)) == pytest.approx(estimators[name](table)[mine], abs=2e-5)


@pytest.mark.parametrize("name", sorted(SCALE_FREE | SCALES_ALONG))
@quick
@given(table=tables(), scale=st.sampled_from([0.5, 2.0, 8.0]))
def test_scale(name: str, table: StepTable, scale: float) -> None:
    """Rewards, baselines and values in another unit."""
    extras = {n: table.extras[n] * scale for n in ("baseline", "value", "process")}
    scaled = estimators[name](rewarded(table, table.reward * scale, **extras))
    expected = estimators[name](table) * (scale if name in SCALES_ALONG else 1.0)
    assert scaled == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", [n for n in estimators if n not in NOT_SHIFT_FREE])
@quick
@given(table=tables(), shift=st.sampled_from([-3.0, 0.5, 4.0]))
def test_a_constant_on_every_score_does_not_matter(name: str, table: StepTable, shift: float) -> None:
    """Nor on the baselines and values that they are compared with."""
    reward = table.reward.copy()
    reward[last_rows(table)] += shift
    extras = {n: table.extras[n] + shift for n in ("baseline", "value")}
    options = undiscounted(name)
    got = estimators[name](rewarded(table, reward, **extras), **options)
    assert got == pytest.approx(estimators[name](table, **options), abs=1e-4)


@pytest.mark.parametrize("name", [n for n in estimators if n not in NOT_PER_GROUP])
@quick
@given(table=tables(groups=1))
def test_equal_outcomes_give_exactly_nothing(name: str, table: StepTable) -> None:
    reward = np.zeros(len(table))
    reward[last_rows(table)] = 0.1
    options = undiscounted(name)
    extras: dict[str, Array] = {"matched": np.ones(len(table), np.bool_), "process": np.zeros(len(table))}
    assert (estimators[name](rewarded(table, reward, **extras), **options) == 0).all()


@pytest.mark.parametrize("name", [n for n in estimators if n not in NOT_PER_GROUP])
@quick
@given(table=tables(steps=1))
def test_a_rollout_alone_in_its_group_gets_nothing(name: str, table: StepTable) -> None:
    alone = replace(table, group=table.rollout)
    assert (estimators[name](alone) == 0).all()


@pytest.mark.parametrize("name", sorted(CENTRED))
@quick
@given(table=tables())
def test_the_rollouts_of_a_group_sum_to_nothing(name: str, table: StepTable) -> None:
    options: dict[str, Any] = {"step_weight": 0.0} if name in ("gigpo", "state_rloo") else {}
    weights = 1.0 / np.bincount(table.rollout)[table.rollout]
    assert np.bincount(table.group, estimators[name](table, **options) * weights) == pytest.approx(
        0, abs=1e-4
    )


@pytest.mark.parametrize("name", [n for n in estimators if n not in BY_DECISION])
@quick
@given(table=tables(), which=st.integers(0, 11))
def test_a_rollout_may_have_any_number_of_rows(name: str, table: StepTable, which: int) -> None:
    """A further row of the same rollout, without reward, tokens or state, changes no other."""
    columns: dict[str, Any] = {k: v.tolist() for k, v in taken(table, range(len(table))).columns().items()}
    row = last_rows(table)[which % len(last_rows(table))]
    further = {"reward": 0.0, "tokens": 0, "turn": 99, "anchor": -1, "node": -1, "action": -1}
    for column, values in columns.items():
        values.append(further.get(column, values[row]))
    for column in ("anchor", "node", "action"):
        columns[column] = [None if a < 0 else a for a in columns[column]]
    columns["energy"][-1] = columns["value"][-1] = 0.0
    got = estimators[name](StepTable.from_columns(**columns))
    assert got[:-1] == pytest.approx(estimators[name](table), abs=2e-5)
