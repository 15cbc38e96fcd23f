"""Why a default differs from the authors' code: the smallest example of each defect, and what compat gives."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.training.advantages import (
    dr_grpo,
    gigpo,
    gpg,
    grpo,
    hgpo,
    mc_grpo,
    opo,
    passk_grpo,
    portool,
    prorag,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
    spo,
    state_rloo,
    tree_progress,
    treepo,
    treeps_rag,
    ui_s1,
    vcpo,
)
from palestra.training.advantages.compat import quirks
from palestra.training.advantages.reweighting import (
    confidence_punished,
    duration_weighted,
    novelty_sharpened,
)
from palestra.training.advantages.selection import d3s, largest_variance
from palestra.training.advantages.shaping import gated
from palestra.training.advantages.similarity import SubsequenceMatcher, similar_anchors
from palestra.training.losses import off_policy_baseline
from palestra.training.table import StepTable


def table(rollouts: Sequence[Sequence[float]], anchors: str | None = None, **columns: Any) -> StepTable:
    """One group; `rollouts` are lists of rewards, `anchors` one letter per row."""
    rows = [(i, t, r) for i, rewards in enumerate(rollouts) for t, r in enumerate(rewards)]
    own: dict[str, Any] = {
        "group": ["g"] * len(rows),
        "rollout": [i for i, _, _ in rows],
        "turn": [t for _, t, _ in rows],
        "reward": [r for _, _, r in rows],
        "anchor": list(anchors) if anchors else [None] * len(rows),
    }
    return StepTable.from_columns(**own | columns)


class TestRowStatistics:
    """verl-agent takes means over step rows: a failure in three steps outweighs a success in one."""

    steps = table([[0, 0, 0], [1]])

    def test_the_mean_is_that_of_the_rollouts(self) -> None:
        assert grpo(self.steps, norm="none").tolist() == [-0.5, -0.5, -0.5, 0.5]

    def test_the_mean_of_the_rows_is_asked_for(self) -> None:
        assert grpo(self.steps, norm="none", compat=["row-statistics"]).tolist() == [
            -0.25,
            -0.25,
            -0.25,
            0.75,
        ]

    def test_rloo_over_rows_leaves_only_one_row_out(self) -> None:
        """The baseline of rollout 0 then holds two of its own rows."""
        assert rloo(self.steps).tolist() == [-1.0, -1.0, -1.0, 1.0]
        assert rloo(self.steps, compat="verl-agent") == pytest.approx([-1 / 3, -1 / 3, -1 / 3, 1.0])


class TestLoneRollouts:
    """Alone in its group a rollout was compared with nothing; verl gives it its raw score."""

    lone = table([[2.0]], "s")

    @pytest.mark.parametrize("estimator", [grpo, rloo, opo, gpg, gigpo])
    def test_nothing_by_default(self, estimator: Any) -> None:
        assert estimator(self.lone).tolist() == [0.0]
        assert estimator(self.lone, compat=["lone-raw"]) == pytest.approx([2.0], rel=1e-5)

    def test_one_rollout_is_not_the_best_of_any(self) -> None:
        assert passk_grpo(self.lone).tolist() == [0.0]


def test_small_spreads_are_scaled_like_large_ones() -> None:
    """verl's vectorized GRPO has a floor of sqrt(eps) under the deviation: a spread of 0.0001 nearly vanishes."""
    near = table([[0.5], [0.5001]])
    assert grpo(near) == pytest.approx([-0.7, 0.7], abs=0.02)
    assert np.abs(grpo(near, compat="verl-vectorized")).max() < 0.06


def test_a_solved_group_is_no_information() -> None:
    """GPG's alpha counts scores that are not 0; a group of four successes has four, and no gradient."""
    rows = StepTable.from_columns(
        group=["easy"] * 4 + ["hard"] * 4,
        rollout=list(range(8)),
        turn=[0] * 8,
        reward=[1, 1, 1, 1, 1, 0, 0, 0],
        anchor=[None] * 8,
    )
    assert gpg(rows)[4] == pytest.approx(8 / 4 * 0.75)
    assert gpg(rows, compat=["nonzero-scores"])[4] == pytest.approx(8 / 5 * 0.75)


class TestReturnsOverGaps:
    """verl's returns start anew at a masked token: what the agent did before an observation gets nothing."""

    tokens = table([[0, 0, 0, 1], [0, 0, 0, 0]], turn=[0, 1, 3, 4, 0, 1, 3, 4])

    def test_credit_crosses_observations(self) -> None:
        got = reinforce_plus_plus(self.tokens)
        assert len(set(got[:4].tolist())) == 1 and got[0] > 0

    def test_compat_cuts_it(self) -> None:
        got = reinforce_plus_plus(self.tokens, compat=["reset-at-gaps"])
        assert got[0] == got[1] == got[4] < 0 < got[2]


def test_long_rollouts_do_not_weigh_more_in_a_batch() -> None:
    rows = table([[0.0], [1.0]], tokens=[99, 1])
    assert reinforce_plus_plus(rows) == pytest.approx([-0.7071, 0.7071], abs=1e-3)
    assert reinforce_plus_plus(rows, compat="verl") == pytest.approx([-0.1, 9.9], abs=0.01)
    assert reinforce_plus_plus_baseline(rows) == pytest.approx([-0.7071, 0.7071], abs=1e-3)


class TestMedians:
    """Four failures and a success: MAD is 0 and the code divides by 0.001."""

    rows = table([[0.0], [0.0], [0.0], [0.0], [1.0]])

    def test_the_mean_deviation_takes_the_place_of_a_scale_of_nothing(self) -> None:
        assert mc_grpo(self.rows, rescale=False) == pytest.approx([0, 0, 0, 0, 1 / 0.201])

    def test_compat_gives_five_thousand(self) -> None:
        assert mc_grpo(self.rows, compat="mc-grpo")[4] == pytest.approx(5000.0)

    def test_rescaling_stands_in_for_the_rollouts_without_gradient(self) -> None:
        rows = table([[0.0], [0.25], [0.75], [0.75], [1.0]])
        assert mc_grpo(rows) == pytest.approx(np.array([-0.75, -0.5, 0, 0, 0.25]) / 0.251 * 5 / 3)

    def test_the_median_of_an_even_number_is_the_lower_one(self) -> None:
        assert (mc_grpo(table([[0.0], [1.0]])) == np.array([0.0, 2 * 1 / 0.501], np.float32)).all()


class TestLoopsAndStates:
    def test_a_loop_is_its_own_baseline_in_gigpo_and_not_in_state_rloo(self) -> None:
        """Rollout 0 stays in s three times. Only rollout 1 says what s is worth without it."""
        rows = table([[0, 0, 1], [0]], "ssss")
        options: dict[str, Any] = {"gamma": 1.0}
        assert (gigpo(rows, norm="none", **options) - grpo(rows, norm="none")).tolist() == [0.25] * 3 + [
            -0.75
        ]
        assert (state_rloo(rows, **options) - rloo(rows)).tolist() == [1.0] * 3 + [-1.0]

    def test_a_state_that_no_other_rollout_saw_has_no_baseline(self) -> None:
        rows = table([[0, 1], [0, 0]], "sxsy")
        assert (state_rloo(rows, gamma=1.0) - rloo(rows)).tolist() == [1.0, 0.0, -1.0, 0.0]

    def test_agreement_in_history_counts_more(self) -> None:
        """In b, rollouts 0 and 1 came from a; rollout 2 from x. Both levels see them, 2 only the first."""
        rows = table([[0, 1], [0, 0], [0, 0]], "abab" + "xb")
        got = hgpo(rows, gamma=1.0, history=1, norm="none", eps=0.0)
        state, both = np.array([2, -1, -1]) / 3, np.array([0.5, -0.5])
        assert got[[1, 3]] == pytest.approx((2 * state[:2] + 3 * both) / 5)
        assert got[5] == pytest.approx(state[2])

    def test_hgpo_with_base_adds_the_rollout(self) -> None:
        rows = table([[1.0], [0.0]], "sx")
        assert hgpo(rows, norm="none").tolist() == [0.0, 0.0]
        assert hgpo(rows, norm="none", base=True, eps=0.0) == pytest.approx([0.5, -0.5])


def test_credit_never_crosses_an_experts_step() -> None:
    rows = table([[0, 0, 1], [0, 0, 0]], matched=[True, False, True, True, True, True])
    got = ui_s1(rows, norm="none", episode_weight=0.0)
    assert got == pytest.approx([0, 0, 0.5, 0, 0, -0.5])


class TestTrees:
    """Root, then a (leaves 1, 0) and b (leaves 0, 0)."""

    rows = table(
        [[0, 1], [0, 0], [0, 0], [0, 0]], node=["a", "a1", "a", "a2", "b", "b1", "b", "b2"], turn=[0, 1] * 4
    )

    def test_rollouts_are_compared_below_every_fork(self) -> None:
        assert treepo(self.rows)[:4:2].tolist() == pytest.approx([1.4434, -0.8660], abs=1e-3)

    def test_a_fork_without_spread_may_be_left_out(self) -> None:
        assert treepo(self.rows, skip_equal=True)[4] < treepo(self.rows)[4] < 0

    def test_nodes_get_what_they_gained_over_their_parent(self) -> None:
        got = spo(self.rows)
        assert got.tolist() == [1.0, 0.0, 1.0, -2.0, -1.0, 1.0, -1.0, 1.0]

    def test_mean_outcomes_below_a_node(self) -> None:
        """V(root) = 1/4, V(a) = 1/2, V(b) = 0."""
        expected = [0.5, 1.25, 0.5, -0.75, -0.5, -0.25, -0.5, -0.25]
        assert treeps_rag(self.rows).tolist() == expected

    def test_relative_to_the_fork_and_to_the_task(self) -> None:
        forks = portool(self.rows, rollout_weight=0.0)
        assert forks.tolist() == [0.25, 0.5, 0.25, -0.5, -0.25, 0.0, -0.25, 0.0]
        assert (portool(self.rows) - forks)[::2].tolist() == [0.75, -0.25, -0.25, -0.25]

    def test_a_shared_node_has_one_advantage(self) -> None:
        for got in (tree_progress(self.rows), spo(self.rows)):
            assert got[0] == got[2] and got[4] == got[6]

    def test_a_node_with_two_parents_is_refused(self) -> None:
        with pytest.raises(ValueError, match="two parents: name nodes by their whole path"):
            treepo(table([[0, 1], [0, 0]], node=["a", "x", "b", "x"]))

    def test_an_unknown_weighting_is_refused(self) -> None:
        with pytest.raises(ValueError, match="weighting is 'size' or 'average', got 'depth'"):
            treepo(self.rows, weighting="depth")  # type: ignore[arg-type]


class TestSimilarity:
    text = "the drawer is closed and the lamp is on the desk by the window " * 7
    changed = text[:-30] + "#" + text[-29:]

    def test_one_character_in_four_hundred_is_nearly_the_same_text(self) -> None:
        """difflib calls every frequent character of a long text junk, and finds the end to be different."""
        assert len(self.text) > 400
        assert SequenceMatcher(None, self.text, self.changed).ratio() < 0.95
        assert similar_anchors([self.text, self.changed], "gg") == [("g", 0)] * 2
        assert len(set(similar_anchors([self.text, self.changed], "gg", compat="verl-agent"))) == 2

    def test_the_order_of_rows_does_not_matter(self) -> None:
        """Each text is alike to the next, the ends are not: who comes first decides."""
        texts = ["aaaaaaaaaa", "aaaaaaaaab", "aaaaaaaabb"]
        middle_first = [texts[1], texts[0], texts[2]]
        names = dict(zip(texts, similar_anchors(texts, "ggg", threshold=0.9), strict=True))
        again = dict(zip(middle_first, similar_anchors(middle_first, "ggg", threshold=0.9), strict=True))
        assert names == again
        assert len(set(similar_anchors(middle_first, "ggg", threshold=0.9, compat="difflib"))) == 1

    def test_other_groups_and_unknown_anchors(self) -> None:
        got = similar_anchors(["a", "a", None, None], ["g", "h", "g", "g"])
        assert got[0] != got[1] and got[2:] == [None, None]

    @pytest.mark.parametrize("threshold", [0.0, 1.5])
    def test_a_threshold_out_of_range_is_refused(self, threshold: float) -> None:
        with pytest.raises(ValueError, match="it must be above 0 and at most 1"):
            similar_anchors(["a"], "g", threshold=threshold)

    def test_short_texts_fall_into_the_clusters_of_difflib(self) -> None:
        """Below 200 characters difflib has no junk: ten states, each seen with a few characters changed."""
        random = np.random.default_rng(1)
        for _ in range(20):
            states = ["".join(random.choice(list("abcdefgh "), 150)) for _ in range(10)]
            texts = [changed(states[random.integers(10)], random) for _ in range(60)]
            ours = similar_anchors(texts, ["g"] * 60)
            theirs = similar_anchors(texts, ["g"] * 60, compat="difflib")
            assert len(set(ours)) == len(set(theirs)) == len(set(zip(ours, theirs, strict=True)))

    def test_against_the_textbook(self) -> None:
        random = np.random.default_rng(0)
        for _ in range(300):
            a, b = ("".join(random.choice(list("ab c"), random.integers(0, 40))) for _ in range(2))
            ratio = 2 * lcs(a, b) / max(len(a) + len(b), 1) if a or b else 1.0
            for threshold in (0.3, 0.5, 0.7, 0.9):
                assert SubsequenceMatcher(a).alike(SubsequenceMatcher(b), threshold) == (
                    ratio >= threshold
                ), (a, b, threshold)


def changed(text: str, random: np.random.Generator) -> str:
    """`text` with up to three characters replaced."""
    characters = list(text)
    for place in random.integers(0, len(text), random.integers(0, 4)):
        characters[place] = "#"
    return "".join(characters)


def lcs(a: str, b: str) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        last = 0
        for j, y in enumerate(b, start=1):
            last, row[j] = row[j], last + 1 if x == y else max(row[j], row[j - 1])
    return row[-1]


class TestReweighting:
    rows = table([[1.0], [1.0], [0.0]], logprob=[-2.0, -1.0, -1.5], duration_s=[3.0, 1.0, 2.0])
    advantages = dr_grpo(rows)

    def test_unlikely_successes_gain(self) -> None:
        got = novelty_sharpened(self.advantages, self.rows)
        assert got[0] == pytest.approx(1 / 3 + min(1 - np.exp(-0.5), 1 / 3)) and got[0] > got[1]
        assert got[1:].tolist() == self.advantages[1:].tolist()

    def test_a_bonus_never_exceeds_its_share_of_the_advantage(self) -> None:
        got = novelty_sharpened(self.advantages, self.rows, strength=9.0, cap=0.5)
        assert got[0] == pytest.approx(0.5)

    def test_confident_errors_cost_more(self) -> None:
        rows = table([[1.0], [1.0], [0.0]], log_ratio=[5.0, 5.0, 0.0])
        got = confidence_punished(self.advantages, rows)
        assert got[:2].tolist() == self.advantages[:2].tolist()
        assert got[2] == pytest.approx(-2 / 3 * (1 + np.log(2)))

    def test_slow_actions_weigh_more(self) -> None:
        got = duration_weighted(self.advantages, self.rows)
        assert got == pytest.approx(self.advantages * np.array([1.5, 0.5, 1.0]))

    def test_time_that_did_not_pass(self) -> None:
        still = table([[1.0]], duration_s=[0.0])
        with pytest.raises(ValueError, match="every duration_s is 0"):
            duration_weighted(grpo(still), still)


class TestVcpo:
    def test_the_baseline_is_nearest_to_what_moves_the_policy_most(self) -> None:
        rows = table([[1.0], [0.0]], energy=[3.0, 1.0], tokens=[3, 1])
        assert vcpo(rows) == pytest.approx([0.25, -0.75])
        assert vcpo(rows, by_length=True) == pytest.approx([0.75, -0.25])

    def test_it_is_the_function_with_exact_norms(self) -> None:
        rows = table([[1.0], [0.25], [0.0]], energy=[3.0, 1.0, 2.0])
        exact = off_policy_baseline(np.array([1.0, 0.25, 0.0]), np.sqrt([3.0, 1.0, 2.0]))
        assert 1.0 - vcpo(rows)[0] == pytest.approx(exact)


class TestSelection:
    @given(st.lists(st.integers(-9, 9), min_size=1, max_size=7), st.integers(1, 7))
    def test_no_other_choice_varies_more(self, values: list[int], count: int) -> None:
        x, count = np.array(values, np.float64), min(count, len(values))
        kept = largest_variance(x, count)
        assert kept.sum() == count
        best = max(np.var(x[list(chosen)]) for chosen in combinations(range(len(x)), count))
        assert np.var(x[kept]) == pytest.approx(best)

    def test_the_middle_of_a_group_is_left_out(self) -> None:
        rows = table([[1.0], [0.5], [0.0], [0.5]])
        got = d3s(dr_grpo(rows), rows, share=0.5)
        assert got.tolist() == [0.5, 0.0, -0.5, 0.0]


class TestGatedRewards:
    def test_low_rewards_count_only_where_the_high_one_was_reached(self) -> None:
        rows = table([[0.0, 1.0], [0.0, 0.5]], process=[0.25, 0.25, 9.0, 9.0])
        assert gated(rows).reward.tolist() == [0.25, 1.25, 0.0, 0.5]
        assert gated(rows, threshold=0.5, weight=2.0).scores().tolist() == [2.0, 36.5]


class TestProRag:
    def test_two_granularities(self) -> None:
        rows = table([[0.0, 1.0], [0.0, 0.0]], process=[1.0, 0.0, 0.0, 1.0])
        got = prorag(rows, process_weight=0.5, norm="none")
        assert got == pytest.approx([0.5 + 0.25, 0.5 - 0.25, -0.5 - 0.25, -0.5 + 0.25])


class TestQuirks:
    def test_a_code_base_is_all_its_quirks_that_are_known(self) -> None:
        assert quirks("verl-agent", ["lone-raw", "reset-at-gaps"]) == {"lone-raw"}

    def test_single_quirks(self) -> None:
        assert quirks("lone-raw", ["lone-raw"]) == quirks(["lone-raw"], ["lone-raw"]) == {"lone-raw"}
        assert quirks(None, ["lone-raw"]) == frozenset()

    def test_a_quirk_that_the_estimator_does_not_have_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"compat names \['reset-at-gaps'\]; this estimator knows"):
            quirks(["lone-raw", "reset-at-gaps"], ["lone-raw"])
