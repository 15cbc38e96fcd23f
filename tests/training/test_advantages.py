"""Estimators against their authors' numbers, their documented departures, and what must hold for any table."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.training.advantages import estimators, gigpo, grpo
from palestra.training.advantages.gigpo import discounted_returns
from palestra.training.advantages.groups import normalised
from palestra.training.table import StepTable

Vectors = Callable[[str], Any]
Array = npt.NDArray[Any]
NORMS: dict[Any, Any] = {"mean_norm": "none", "mean_std_norm": "std", True: "std", False: "none"}


def positions(keys: Sequence[Any]) -> list[int]:
    """How often each key came before."""
    return [list(keys[:i]).count(key) for i, key in enumerate(keys)]


def vector_table(inputs: dict[str, Any]) -> StepTable:
    return StepTable.from_columns(
        group=inputs["index"],
        rollout=inputs["traj_index"],
        turn=positions(inputs["traj_index"]),
        reward=inputs["rewards"],
        anchor=inputs["anchor_obs"],
    )


def first_unmasked(values: Sequence[Sequence[float]], mask: Sequence[Sequence[int]]) -> Array:
    return np.array([row[int(np.argmax(m))] for row, m in zip(values, mask, strict=True)])


def informative(values: Array, groups: Array) -> Array:
    """Rows whose group has different values: elsewhere the authors divide rounding noise by epsilon."""
    spread = {
        g: np.ptp(values[groups == g]) > 1e-5 * (1 + np.abs(values[groups == g]).max()) for g in set(groups)
    }
    return np.array([spread[g] for g in groups])


class TestAuthorsNumbers:
    def test_gigpo(self, vectors: Vectors) -> None:
        compared = 0
        for case in vectors("gigpo.json"):
            for run in case["runs"]:
                if not run["params"]["enable_similarity"]:
                    self.compare(case, run)
                    compared += 1
        assert compared == 36

    def compare(self, case: dict[str, Any], run: dict[str, Any]) -> None:
        table, mask = vector_table(case["inputs"]), case["inputs"]["response_mask"]
        norm, weight = NORMS[run["params"]["mode"]], run["params"]["step_advantage_w"]
        episode = gigpo(table, gamma=0.95, step_weight=0.0, norm=norm)
        step = gigpo(table, gamma=0.95, step_weight=1.0, norm=norm) - episode
        both = gigpo(table, gamma=0.95, step_weight=weight, norm=norm)
        theirs_step = first_unmasked(run["step_advantages"], mask)
        theirs_episode = first_unmasked(run["episode_advantages_per_trajectory"], mask)

        returns = np.array(case["step_rewards"])
        told = informative(returns, np.array(run["step_group"]))
        size = max(1.0, float(np.abs(theirs_step).max()))
        assert step[told] == pytest.approx(theirs_step[told], rel=2e-4, abs=2e-5 * size), case["name"]
        assert (np.abs(step[~told]) < 1e-6 * size).all(), case["name"]

        rollouts = np.bincount(table.rollout_groups())[table.group]
        told = informative(table.scores()[table.rollout], table.group) & (rollouts > 1)
        size = max(1.0, float(np.abs(theirs_episode).max()))
        assert episode[told] == pytest.approx(theirs_episode[told], rel=2e-4, abs=2e-5 * size), case["name"]
        assert (episode[~told] == 0).all(), case["name"]
        assert both == pytest.approx(episode + weight * step, rel=1e-4, abs=1e-5 * size)

    def test_discounted_returns(self, vectors: Vectors) -> None:
        for case in vectors("gigpo.json"):
            table = vector_table(case["inputs"])
            for gamma, expected in case["returns"].items():
                got = discounted_returns(table, float(gamma))
                assert got == pytest.approx(np.array(expected), rel=1e-5, abs=1e-5), (case["name"], gamma)

    def test_grpo(self, vectors: Vectors) -> None:
        compared = 0
        for case in vectors("verl_advantages.json"):
            inputs = case["inputs"]
            rewards = np.sum(inputs["token_level_rewards"], axis=1)
            table = rows(inputs["index"], rewards.tolist())
            for run in (r for r in case["runs"] if r["estimator"] == "grpo"):
                compared += 1
                got = grpo(table, norm=NORMS[run["params"]["norm_adv_by_std_in_grpo"]])
                for row, mask, ours, group in zip(
                    run["advantages"], inputs["response_mask"], got, inputs["index"], strict=True
                ):
                    if not any(mask) or case["name"] == "singles":
                        continue
                    members = rewards[[g == group for g in inputs["index"]]]
                    if np.ptp(members) < 1e-6:
                        assert ours == 0
                    else:
                        assert ours == pytest.approx(row[int(np.argmax(mask))], rel=3e-3, abs=1e-6), case[
                            "name"
                        ]
        assert compared == 14

    def test_fixtures_of_our_own(self) -> None:
        """Worked by hand in tests/training/data/advantages.json."""
        for case in json.loads((Path(__file__).parent / "data" / "advantages.json").read_text()):
            table = StepTable.from_columns(**case["columns"])
            got = estimators[case["estimator"]](table, **case["options"])
            assert got == pytest.approx(case["advantages"], abs=1e-5), case["name"]
            assert got.dtype == np.float32


def rows(groups: Sequence[str], rewards: Sequence[float], **columns: Any) -> StepTable:
    """One rollout of one step per row."""
    count = len(groups)
    defaults: dict[str, Any] = {"turn": [0] * count, "anchor": ["s"] * count, "rollout": list(range(count))}
    return StepTable.from_columns(group=groups, reward=rewards, **defaults | columns)


class TestDepartures:
    def test_statistics_are_over_rollouts_however_many_rows_each_has(self) -> None:
        table = StepTable.from_columns(
            group=["g"] * 4, rollout=[0, 0, 0, 1], turn=[0, 1, 2, 0], reward=[0, 0, 1, 0], anchor=list("abcd")
        )
        assert grpo(table, norm="none").tolist() == [0.5, 0.5, 0.5, -0.5]

    def test_a_rollout_alone_in_its_group_gets_nothing(self) -> None:
        for norm in ("std", "none"):
            assert grpo(rows(["a"], [10.0]), norm=norm).tolist() == [0.0]
            assert gigpo(rows(["a"], [10.0]), norm=norm).tolist() == [0.0]

    def test_equal_scores_give_exactly_nothing(self) -> None:
        """0.1 is not exact in binary: float32 statistics would divide their rounding by epsilon."""
        table = rows(["g"] * 3, [0.1] * 3)
        assert grpo(table).tolist() == gigpo(table).tolist() == [0.0] * 3

    def test_scores_that_add_up_to_the_same_by_another_way_are_equal(self) -> None:
        table = StepTable.from_columns(
            group=["g"] * 4,
            rollout=[0, 0, 0, 1],
            turn=[0, 1, 2, 0],
            reward=[0.1, 0.1, 0.1, 0.3],
            anchor=list("abcd"),
        )
        assert grpo(table).tolist() == [0.0] * 4

    def test_rows_may_come_in_any_order(self) -> None:
        table = StepTable.from_columns(
            group=["g"] * 4, rollout=[0, 1, 0, 1], turn=[1, 1, 0, 0], reward=[1, 0, 0, 0], anchor=list("bbaa")
        )
        assert gigpo(table, gamma=0.5, norm="none").tolist() == [1.0, -1.0, 0.75, -0.75]

    def test_an_unknown_anchor_has_no_step_advantage(self) -> None:
        table = rows(["g"] * 2, [1.0, 0.0], anchor=[None, None])
        assert gigpo(table).tolist() == grpo(table).tolist()

    def test_the_same_state_in_another_task_is_another_decision(self) -> None:
        table = rows(["a", "a", "b", "b"], [1.0, 1.0, 0.0, 0.0])
        assert gigpo(table).tolist() == [0.0] * 4

    def test_the_deviation_is_the_unbiased_one(self) -> None:
        assert grpo(rows(["g"] * 2, [1.0, 0.0]), eps=0.0) == pytest.approx([0.5**0.5, -(0.5**0.5)])

    def test_an_unknown_norm_is_refused(self) -> None:
        with pytest.raises(ValueError, match="norm is 'std' or 'none', got 'max'"):
            normalised(np.ones(1), np.zeros(1, np.int32), np.ones(1, np.bool_), norm="max")  # type: ignore[arg-type]


@st.composite
def tables(draw: st.DrawFn) -> StepTable:
    """Up to 3 groups of up to 4 rollouts of up to 4 steps; some rollouts not valid, some anchors unknown."""
    columns: dict[str, list[Any]] = {n: [] for n in ("group", "rollout", "turn", "reward", "anchor", "valid")}
    for rollout in range(draw(st.integers(1, 12))):
        group, valid = draw(st.integers(0, 2)), draw(st.booleans())
        for turn in range(draw(st.integers(1, 4))):
            columns["group"].append(group)
            columns["rollout"].append(rollout)
            columns["turn"].append(turn)
            columns["reward"].append(draw(st.integers(-4, 4)) / 4)
            columns["anchor"].append(draw(st.sampled_from(["s", "t", None])))
            columns["valid"].append(valid)
    return StepTable.from_columns(**columns)


def taken(table: StepTable, index: Array) -> StepTable:
    """The rows at `index`, ids made dense again."""
    columns: dict[str, Any] = {name: values[index].tolist() for name, values in table.columns().items()}
    columns["anchor"] = [None if a < 0 else a for a in columns["anchor"]]
    return StepTable.from_columns(**columns)


@pytest.mark.parametrize("name", ["grpo", "gigpo"])
class TestProperties:
    @given(table=tables(), random=st.randoms(use_true_random=False))
    def test_permuting_rows_permutes_advantages(self, name: str, table: StepTable, random: Any) -> None:
        order = list(range(len(table)))
        random.shuffle(order)
        got = estimators[name](taken(table, np.array(order)))
        assert got == pytest.approx(estimators[name](table)[order], abs=1e-5)

    @given(table=tables(), scale=st.sampled_from([0.5, 2.0, 8.0]))
    def test_scale_does_not_matter_with_std_and_carries_over_without(
        self, name: str, table: StepTable, scale: float
    ) -> None:
        scaled = replace(table, reward=table.reward * scale)
        assert estimators[name](scaled, eps=0.0) == pytest.approx(estimators[name](table, eps=0.0), abs=1e-4)
        plain = estimators[name](table, norm="none")
        assert estimators[name](scaled, norm="none") == pytest.approx(plain * scale, abs=1e-5)

    @given(table=tables(), shift=st.sampled_from([-3.0, 0.5, 4.0]))
    def test_a_constant_on_every_score_does_not_matter(
        self, name: str, table: StepTable, shift: float
    ) -> None:
        last = np.array(
            [
                t == table.turn[table.rollout == r].max()
                for r, t in zip(table.rollout, table.turn, strict=True)
            ]
        )
        shifted = replace(table, reward=table.reward + shift * last)
        options: dict[str, Any] = {"step_weight": 0.0} if name == "gigpo" else {}
        assert estimators[name](shifted, **options) == pytest.approx(
            estimators[name](table, **options), abs=1e-4
        )

    @given(table=tables())
    def test_rollouts_that_are_not_valid_change_nothing_and_get_nothing(
        self, name: str, table: StepTable
    ) -> None:
        got = estimators[name](table)
        assert (got[~table.valid] == 0).all()
        poisoned = replace(table, reward=np.where(table.valid, table.reward, np.nan))
        assert np.array_equal(estimators[name](poisoned), got)
        kept = np.flatnonzero(table.valid)
        if len(kept):
            assert estimators[name](taken(table, kept)) == pytest.approx(got[kept], abs=1e-5)

    @given(table=tables(), copies=st.integers(1, 3))
    def test_more_branches_of_a_rollout_change_nothing(
        self, name: str, table: StepTable, copies: int
    ) -> None:
        """Further decisions without a reward, as forks and sub-agents leave them, move no statistic."""
        first = np.unique(table.rollout, return_index=True)[1][:2]
        index = np.concatenate([np.arange(len(table)), np.repeat(first, copies)])
        added = np.arange(len(index)) >= len(table)
        grown = taken(table, index)
        grown = replace(
            grown,
            turn=np.where(added, 10 + np.arange(len(index)), grown.turn).astype(np.int32),
            reward=np.where(added, 0.0, grown.reward),
            anchor=np.where(added, -1, grown.anchor).astype(np.int32),
        )
        got = estimators[name](grown)
        assert got[~added] == pytest.approx(estimators[name](table), abs=1e-5)

    @given(table=tables())
    def test_groups_sum_to_nothing(self, name: str, table: StepTable) -> None:
        weights = 1.0 / np.bincount(table.rollout)[table.rollout]
        options: dict[str, Any] = {"step_weight": 0.0} if name == "gigpo" else {}
        got = estimators[name](table, **options) * weights
        assert np.bincount(table.group, got) == pytest.approx(0.0, abs=1e-4)
        assert np.isfinite(got).all()

    @given(table=tables())
    def test_other_groups_do_not_matter(self, name: str, table: StepTable) -> None:
        mine = np.flatnonzero(table.group == 0)
        assert estimators[name](taken(table, mine)) == pytest.approx(estimators[name](table)[mine], abs=1e-5)

    def test_no_rows(self, name: str) -> None:
        table = StepTable.from_columns(group=[], rollout=[], turn=[], reward=[], anchor=[])
        assert estimators[name](table).shape == (0,)


@given(table=tables())
def test_state_groups_sum_to_nothing(table: StepTable) -> None:
    step = gigpo(table) - gigpo(table, step_weight=0.0)
    states = table.group * 8 + table.anchor
    assert np.bincount(states[table.anchor >= 0], step[table.anchor >= 0]) == pytest.approx(0.0, abs=1e-4)
