"""From recorded rollouts to the table that credit is computed from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.training.decisions import decisions
from palestra.training.table import StepTable, factorise
from palestra.trajectories.model import Trajectory

MakeRollout = Callable[..., Trajectory]
COLUMNS: dict[str, Any] = {
    "group": ["b", "a", "a"],
    "rollout": [7, 5, 5],
    "turn": [0, 1, 0],
    "reward": [1, 2.5, 0.5],
    "anchor": ["x", None, "x"],
}


class TestColumns:
    def test_ids_are_dense_and_defaults_are_filled_in(self) -> None:
        table = StepTable.from_columns(**COLUMNS)
        assert table.group.tolist() == [0, 1, 1]
        assert table.rollout.tolist() == [0, 1, 1]
        assert table.anchor.tolist() == [0, -1, 0]
        assert table.valid.tolist() == [True] * 3
        assert table.tokens.tolist() == [1] * 3
        assert len(table) == 3

    def test_views_per_rollout(self) -> None:
        table = StepTable.from_columns(**COLUMNS, valid=[True, True, False])
        assert table.scores().tolist() == [1.0, 3.0]
        assert table.rollout_groups().tolist() == [0, 1]
        assert table.rollout_valid().tolist() == [True, False]
        assert table.time_order().tolist() == [0, 2, 1]

    def test_unknown_anchors_equal_nothing(self) -> None:
        table = StepTable.from_columns(**COLUMNS | {"anchor": [None, None, "x"]})
        assert table.anchor[0] == table.anchor[1] == -1 != table.anchor[2]

    def test_no_rows(self) -> None:
        table = StepTable.from_columns(group=[], rollout=[], turn=[], reward=[], anchor=[])
        assert len(table) == 0
        assert table.scores().shape == table.rollout_groups().shape == (0,)

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"reward": [1.0]}, "different lengths"),
            ({"valid": [True]}, "different lengths"),
            ({"height": [1, 2, 3]}, r"unknown columns \['height'\]"),
            ({"rollout": [5, 5, 5]}, "a rollout is in two groups"),
        ],
    )
    def test_columns_that_do_not_fit(self, changes: dict[str, Any], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            StepTable.from_columns(**COLUMNS | changes)

    @given(st.lists(st.one_of(st.integers(0, 5), st.sampled_from("abc"))))
    def test_factorise_numbers_values_in_order_of_appearance(self, values: list[Any]) -> None:
        ids = factorise(values)
        assert [list(dict.fromkeys(values))[i] for i in ids] == values
        assert list(dict.fromkeys(ids.tolist())) == list(range(len(set(values))))


class TestDecisions:
    def test_one_row_per_call_with_the_rewards_of_its_steps(self, make_rollout: MakeRollout) -> None:
        got = decisions([make_rollout("r", [(0, 0.1, "s0"), (0, 0.2, "s1"), (1, 0.7, "s2")])])
        assert got.keys == [("r", 0), ("r", 1)]
        assert got.table.turn.tolist() == [0, 1]
        assert got.table.reward == pytest.approx([0.3, 0.7])
        assert got.table.anchor.tolist() == [0, 1]
        assert got.table.tokens.tolist() == [1, 2]

    def test_anchors_are_those_of_the_first_step_of_a_call(self, make_rollout: MakeRollout) -> None:
        got = decisions(
            [
                make_rollout("a", [(0, 0, "x"), (0, 0, "y"), (1, 1, "z")]),
                make_rollout("b", [(0, 0, "z"), (1, 1, "x")]),
            ]
        )
        assert got.table.anchor.tolist() == [0, 1, 1, 0]

    def test_a_call_without_steps_has_no_anchor_and_no_reward(self, make_rollout: MakeRollout) -> None:
        got = decisions([make_rollout("r", [(1, 1.0, "s")])])
        assert got.table.anchor.tolist() == [-1, 0]
        assert got.table.reward.tolist() == [0.0, 1.0]

    @pytest.mark.parametrize(
        "changes",
        [{"delivered": False}, {"role": "auxiliary"}, {"role": "compaction"}, {"role": "discarded"}],
    )
    def test_only_trained_calls_are_decisions(
        self, make_rollout: MakeRollout, changes: dict[str, Any]
    ) -> None:
        got = decisions([make_rollout("r", [(0, 0, "s"), (2, 1, "t")], calls=3, changed={1: changes})])
        assert got.keys == [("r", 0), ("r", 2)]
        assert got.table.turn.tolist() == [0, 1]

    def test_subagents_are_trained(self, make_rollout: MakeRollout) -> None:
        got = decisions([make_rollout("r", [(0, 0, "s")], changed={1: {"role": "subagent"}})])
        assert len(got.table) == 2

    def test_calls_that_were_recorded_out_of_order(self, make_rollout: MakeRollout) -> None:
        changed = {0: {"seq": 1}, 1: {"seq": 0}}
        got = decisions([make_rollout("r", [(0, 0.25, "s"), (1, 0.75, "t")], changed=changed)])
        assert got.keys == [("r", 0), ("r", 1)]
        assert got.table.reward.tolist() == [0.25, 0.75]
        assert got.table.tokens.tolist() == [2, 1]

    def test_an_outcome_that_no_step_carries_goes_to_the_last_decision(
        self, make_rollout: MakeRollout
    ) -> None:
        got = decisions([make_rollout("r", [(0, 0.0, "s"), (1, 0.0, "t")], score=1.0)])
        assert got.table.reward.tolist() == [0.0, 1.0]

    def test_rewards_of_steps_that_no_decision_caused_are_not_lost(self, make_rollout: MakeRollout) -> None:
        got = decisions([make_rollout("r", [(0, 0.0, "s"), (None, 0.5, "t"), (1, 0.5, "u")], score=1.0)])
        assert got.table.reward.tolist() == [0.0, 1.0]

    def test_failed_rollouts_keep_their_rows_and_are_not_valid(self, make_rollout: MakeRollout) -> None:
        got = decisions([make_rollout("r", [(0, 0.3, "s")], score=None), make_rollout("q", [(0, 1, "s")])])
        assert got.table.valid.tolist() == [False, False, True, True]
        assert got.table.reward.tolist() == [0.3, 0.0, 1.0, 0.0]

    def test_a_rollout_in_which_the_policy_decided_nothing_has_no_row(
        self, make_rollout: MakeRollout
    ) -> None:
        got = decisions([make_rollout("r", [(None, 1.0, "s")], calls=0), make_rollout("q", [(0, 1, "s")])])
        assert {rollout for rollout, _ in got.keys} == {"q"}

    def test_no_rollouts(self) -> None:
        assert len(decisions([]).table) == 0

    @given(
        st.lists(st.tuples(st.sampled_from([None, 0, 1, 2]), st.floats(-1, 1), st.text("st", max_size=1))),
        st.floats(-2, 2),
    )
    def test_rows_sum_to_the_score(
        self, make_rollout: MakeRollout, steps: list[tuple[int | None, float, str]], score: float
    ) -> None:
        got = decisions([make_rollout("r", steps, calls=3, score=score)])
        assert got.table.scores() == pytest.approx([score], abs=1e-9)
        assert np.isfinite(got.table.reward).all()
