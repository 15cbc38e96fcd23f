"""The optional columns, anchors from digests, sub-agents, and what must not change anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.training.advantages import adjusters, estimators
from palestra.training.advantages.returns import discounted_returns
from palestra.training.config import TrainConfig
from palestra.training.credit import give_credit
from palestra.training.decisions import START, decisions
from palestra.training.table import StepTable
from palestra.trajectories.model import EnvStep, Node, Trajectory

MakeRollout = Callable[..., Trajectory]
UNRECORDED = {"remax", "gae", "ui_s1"}
"""Need a column that recorded rollouts do not have."""
ROWS = st.lists(st.tuples(st.sampled_from([None, "b", "c"]), st.integers(-3, 3)), min_size=1, max_size=9)
every = pytest.mark.parametrize("name", [n for n in estimators if n not in UNRECORDED])


def digested(t: Trajectory, *digests: str) -> Trajectory:
    """`t` as a black-box agent leaves it: digests after each step, no anchors."""
    steps = [replace(s, anchor="", state_digest=d) for s, d in zip(t.steps, digests, strict=True)]
    return replace(t, steps=tuple(steps))


class TestAnchorsFromDigests:
    def test_the_state_before_a_call_is_that_after_the_last_step_of_an_earlier_one(
        self, make_rollout: MakeRollout
    ) -> None:
        steps = [(0, 0.0, ""), (0, 0.0, ""), (2, 1.0, "")]
        a = digested(make_rollout("a", steps, calls=3), "x", "y", "z")
        b = digested(make_rollout("b", [(0, 0.0, ""), (1, 0.0, ""), (2, 1.0, "")], calls=3), "y", "y", "q")
        table = decisions([a, b]).table
        assert table.anchor.tolist() == [0, 1, 1, 0, 1, 1]

    def test_all_begin_at_the_start(self, make_rollout: MakeRollout) -> None:
        t = digested(make_rollout("a", [(0, 0.0, "")]), START + "!")
        assert decisions([t]).table.anchor.tolist() == [0, 1]

    def test_steps_that_say_nothing_have_no_anchor(self, make_rollout: MakeRollout) -> None:
        t = digested(make_rollout("a", [(0, 0.0, "")]), "")
        assert decisions([t]).table.anchor.tolist() == [-1, -1]

    def test_anchors_win_over_digests(self, make_rollout: MakeRollout) -> None:
        t = make_rollout("a", [(0, 0.0, "s"), (1, 1.0, "s")])
        assert decisions([t]).table.anchor.tolist() == [0, 0]

    def test_gigpo_tells_decisions_of_a_black_box_apart(self, make_rollout: MakeRollout) -> None:
        good = digested(make_rollout("a", [(0, 0.0, ""), (1, 1.0, "")], score=1.0), "found", "done")
        bad = digested(make_rollout("b", [(0, 0.0, ""), (1, 0.0, "")], score=0.0), "lost", "done")
        got = estimators["gigpo"](decisions([good, bad]).table, step_weight=1.0)
        plain = estimators["grpo"](decisions([good, bad]).table)
        assert got[0] > plain[0] and got[1] == pytest.approx(plain[1])


class TestColumns:
    def test_durations_actions_logprobs_and_process_rewards(self, make_rollout: MakeRollout) -> None:
        t = make_rollout("a", [(0, 0.25, "s"), (0, 0.25, "t"), (1, 0.5, "u")])
        steps = tuple(replace(s, duration_s=1.5, action=f"act {s.index}") for s in t.steps)
        t = replace(t, steps=(*steps[:2], replace(steps[2], terminated=True)))
        table = decisions([t]).table
        assert table.extra("duration_s").tolist() == [3.0, 1.5]
        assert table.extra("process").tolist() == [0.5, 0.0]
        assert table.extra("logprob").tolist() == [-1.0, -1.0]
        assert table.extra("action").tolist() == [0, 1]
        assert table.extra("energy") == pytest.approx(np.array([1, 2]) * (1 - np.exp(-1)) ** 2)
        assert table.extra("weight").tolist() == [1, 1] and table.extra("branch").tolist() == [-1, -1]

    def test_rollouts_share_nodes_for_as_long_as_they_went_the_same_way(
        self, make_rollout: MakeRollout
    ) -> None:
        a = make_rollout("a", [(0, 0.0, "s"), (1, 1.0, "s")])
        b = replace(
            make_rollout("b", [(0, 0.0, "s"), (1, 0.0, "s")], score=0.0),
            nodes=(a.nodes[0], other(a.nodes[1])),
        )
        table = decisions([a, b]).table
        assert table.extra("node").tolist() == [0, 1, 0, 2]
        assert estimators["treeps_rag"](table)[[0, 2]].tolist() == [0.0, 0.0]
        assert estimators["treeps_rag"](table)[1] > 0 > estimators["treeps_rag"](table)[3]

    def test_a_group_without_a_greedy_score_has_nothing_to_be_compared_with(
        self, make_rollout: MakeRollout
    ) -> None:
        rollouts = [make_rollout(g, [(0, 1.0, "s")], calls=1, group=g) for g in "gh"]
        table = decisions(rollouts, {"h": 0.25}).table
        assert table.valid.tolist() == [False, True]
        assert estimators["remax"](table).tolist() == [0.0, 0.75]


def other(node: Node) -> Node:
    return replace(node, token_ids=node.token_ids + 1)


def table(branch: Sequence[Any], reward: Sequence[float], **columns: Any) -> StepTable:
    size = len(branch)
    own = {"group": [0] * size, "rollout": [0] * size, "turn": range(size), "anchor": [None] * size}
    return StepTable.from_columns(**{**own, "reward": reward, "branch": branch, **columns})


class TestBranches:
    def test_a_branch_is_one_action_of_the_decision_that_started_it(self) -> None:
        got = discounted_returns(table([None, "b", "b", None], [0, 1, 2, 4]), 0.5)
        inside = 1 + 0.5 * 2
        assert got.tolist() == [inside + 0.5 * 4, inside + 0.25 * 4, 2 + 0.5 * 4, 4]

    def test_how_long_a_branch_takes_does_not_matter_to_the_agent(self) -> None:
        short = discounted_returns(table([None, "b", None], [0, 0, 1]), 0.5)
        long = discounted_returns(table([None, *"bbbbb", None], [0] * 6 + [1]), 0.5)
        assert short[0] == long[0] == 0.5 and long[1] == 0.5**5

    def test_branches_side_by_side(self) -> None:
        got = discounted_returns(table([None, "b", "c", "b", "c", None], [0, 1, 2, 1, 2, 8]), 0.5)
        assert got.tolist() == [1.5 + 3 + 4, 1.5 + 2, 3 + 2, 1 + 4, 2 + 4, 8]

    def test_a_branch_that_nothing_follows_or_starts(self) -> None:
        assert discounted_returns(table([None, "b"], [1, 2]), 0.5).tolist() == [3, 2]
        assert discounted_returns(table(["b", None], [1, 2]), 0.5).tolist() == [1, 2]

    def test_without_branches_nothing_is_different(self) -> None:
        plain = table([None] * 4, [1, 0, 2, 3])
        assert np.array_equal(
            discounted_returns(plain, 0.9), discounted_returns(replace(plain, extras={}), 0.9)
        )

    @settings(max_examples=25, deadline=None)
    @given(
        st.lists(st.tuples(st.sampled_from([None, "b", "c"]), st.integers(-3, 3)), min_size=1, max_size=9),
        st.integers(0, 99),
    )
    def test_undiscounted_the_first_decision_of_the_agent_has_the_whole_score(
        self, rows: Any, seed: int
    ) -> None:
        made = table([None, *(b for b, _ in rows)], [0.0, *(float(r) for _, r in rows)])
        assert discounted_returns(made, 1.0)[0] == pytest.approx(sum(r for _, r in rows))
        order = np.random.default_rng(seed).permutation(len(made))
        shuffled = table(
            [made.extras["branch"][i] if made.extras["branch"][i] >= 0 else None for i in order],
            made.reward[order].tolist(),
            turn=made.turn[order].tolist(),
        )
        assert discounted_returns(shuffled, 0.9) == pytest.approx(discounted_returns(made, 0.9)[order])

    def test_recorded_sub_agents_are_branches_and_the_outcome_is_the_agents(
        self, make_rollout: MakeRollout
    ) -> None:
        changed = {k: {"role": "subagent"} for k in (1, 2)}
        t = make_rollout("r", [(0, 0.0, "s"), (3, 0.0, "t"), (4, 0.0, "u")], calls=5, changed=changed)
        nodes = (
            *t.nodes[:1],
            replace(t.nodes[1], parent=None),
            t.nodes[2],
            replace(t.nodes[3], parent=0),
            t.nodes[4],
        )
        got = decisions([replace(t, nodes=nodes)])
        assert got.table.extra("branch").tolist() == [-1, 0, 0, -1, -1]
        assert got.table.reward.tolist() == [0, 0, 0, 0, 1.0]

    def test_the_outcome_goes_to_the_agent_even_where_a_sub_agent_ends_last(
        self, make_rollout: MakeRollout
    ) -> None:
        t = make_rollout("r", [(0, 0.0, "s")], changed={1: {"role": "subagent"}})
        assert decisions([t]).table.reward.tolist() == [1.0, 0.0]


class TestExperts:
    def test_a_decision_matches_where_one_of_its_actions_was_the_experts(
        self, make_rollout: MakeRollout
    ) -> None:
        t = make_rollout("a", [(0, 0.0, "s"), (0, 0.0, "s"), (1, 0.0, "t")], calls=3)
        steps = [replace(s, matched=m) for s, m in zip(t.steps, [False, True, False], strict=True)]
        got = decisions([replace(t, steps=tuple(steps))]).table.extra("matched")
        assert got.tolist() == [True, False, False], "nor does one without an action"

    def test_rollouts_of_a_world_without_an_expert_have_no_such_column(
        self, make_rollout: MakeRollout
    ) -> None:
        t = make_rollout("a", [(0, 0.0, "s")], calls=1)
        known = replace(t, steps=tuple(replace(s, matched=True) for s in t.steps))
        failed = make_rollout("b", [(0, 0.0, "s")], calls=1, score=None)
        assert "matched" in decisions([known, failed]).table.extras
        assert "matched" not in decisions([known, t]).table.extras


def group_of(make_rollout: MakeRollout, scores: list[float | None], group: str = "g") -> list[Trajectory]:
    return [
        make_rollout(f"{group}{i}", [(0, 0.0, "s"), (1, 0.0, "st"[i % 2])], score=score, group=group)
        for i, score in enumerate(scores)
    ]


def recorded_twice(t: Trajectory) -> Trajectory:
    """Every branch once more: a reply that was lost, one that was thrown away, and a history rendered anew."""
    nodes, calls = list(t.nodes), list(t.calls)
    copies: list[dict[str, Any]] = [{"delivered": False}, {"role": "discarded"}]
    for lost in copies:
        offset = len(nodes)
        nodes += [
            replace(n, node_id=n.node_id + offset, parent=None if n.parent is None else n.parent + offset)
            for n in t.nodes
        ]
        calls += [replace(c, seq=c.seq + 100 + offset, node_id=c.node_id + offset, **lost) for c in t.calls]
    return replace(t, nodes=tuple(nodes), calls=tuple(calls))


@every
class TestEveryEstimator:
    def test_branches_that_were_recorded_twice_change_nothing(
        self, make_rollout: MakeRollout, name: str
    ) -> None:
        rollouts = group_of(make_rollout, [1.0, 0.0, 0.5, None])
        config = TrainConfig(estimator=name)
        twice = give_credit([recorded_twice(t) for t in rollouts], config).by_call()
        assert twice == give_credit(rollouts, config).by_call()

    def test_failed_rollouts_change_nothing_up_to_the_batch(
        self, make_rollout: MakeRollout, name: str
    ) -> None:
        config = TrainConfig(
            estimator=name,
            adjust=tuple(
                {"name": n} for n in adjusters if n not in ("confidence_punished", "duration_weighted")
            ),
        )
        kept = [*group_of(make_rollout, [1.0, 0.0, 0.5]), *group_of(make_rollout, [0.0, 1.0], "h")]
        failed = [*group_of(make_rollout, [None] * 5, "i"), *group_of(make_rollout, [None] * 5)[3:]]
        weights = dict.fromkeys("ghi", 1.0)
        alone = give_credit(kept, config).entries(kept, weights)
        among = give_credit([*failed, *kept], config).entries([*failed, *kept], weights)
        assert among == alone and len(alone) == 5

    def test_the_order_of_rollouts_changes_nothing(self, make_rollout: MakeRollout, name: str) -> None:
        rollouts = [*group_of(make_rollout, [1.0, 0.0, 0.25]), *group_of(make_rollout, [0.0, 1.0], "h")]
        config = TrainConfig(estimator=name)
        got, turned = give_credit(rollouts, config).by_call(), give_credit(rollouts[::-1], config).by_call()
        assert turned.keys() == got.keys()
        assert [turned[k] for k in got] == pytest.approx(list(got.values()), abs=1e-6)


def test_steps_of_no_call_are_no_decision(make_rollout: MakeRollout) -> None:
    t = make_rollout("a", [(None, 0.0, "s")], calls=1)
    assert isinstance(t.steps[0], EnvStep)
    assert decisions([t]).table.anchor.tolist() == [-1]
