"""GiGPO, HGPO, UI-S1 and the row statistics of verl-agent against the authors' numbers, in compat mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from palestra.training.advantages import estimators, gigpo, hgpo, ui_s1
from palestra.training.advantages.returns import discounted_returns
from palestra.training.advantages.similarity import similar_anchors
from palestra.training.advantages.ui_s1 import matched_returns

Array = npt.NDArray[Any]
Read = Callable[..., Any]
NORMS: dict[Any, Any] = {"mean_norm": "none", "mean_std_norm": "std", True: "std", False: "none"}
PER_ROLLOUT = ["lone-raw"]


class TestGiGPO:
    def test_returns(self, vectors: Read, step_table: Read) -> None:
        for case in vectors("gigpo.json"):
            for gamma, expected in case["returns"].items():
                got = discounted_returns(step_table(case["inputs"]), float(gamma))
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

    def test_advantages(
        self, vectors: Read, step_table: Read, first_unmasked: Read, assert_agree: Read, equal_groups: Read
    ) -> None:
        compared = 0
        for case in vectors("gigpo.json"):
            inputs, returns = case["inputs"], case["step_rewards"]
            for run in case["runs"]:
                params, where = run["params"], f"{case['name']} {run['params']}"
                table = step_table(inputs, anchor=anchors(inputs, params))
                options = {"gamma": 0.95, "norm": NORMS[params["mode"]]}
                theirs = {
                    k: first_unmasked(run[k], inputs["response_mask"]) for k in run if "advantages" in k
                }
                scores = table.scores()[table.rollout]
                flat = equal_groups(scores, inputs["index"])
                episode = gigpo(table, step_weight=0.0, compat="verl-agent", **options)
                assert_agree(episode, theirs["episode_advantages"], equal=flat, where=where)
                episode = gigpo(table, step_weight=0.0, compat=PER_ROLLOUT, **options)
                assert_agree(episode, theirs["episode_advantages_per_trajectory"], equal=flat, where=where)
                step = gigpo(table, compat="verl-agent", **options) - gigpo(
                    table, step_weight=0.0, compat="verl-agent", **options
                )
                flat_state = equal_groups(returns, run["step_group"])
                assert_agree(step, theirs["step_advantages"], equal=flat_state, where=where)
                told = ~flat & ~flat_state
                both = gigpo(table, step_weight=params["step_advantage_w"], compat="verl-agent", **options)
                assert_agree(both[told], theirs["advantages"][told], where=where)
                compared += 1
        assert compared == 44


def anchors(inputs: dict[str, Any], params: dict[str, Any]) -> Sequence[Any]:
    if not params["enable_similarity"]:
        return inputs["anchor_obs"]  # type: ignore[no-any-return]
    return similar_anchors(
        inputs["anchor_obs"], inputs["index"], threshold=params["similarity_thresh"], compat="verl-agent"
    )


class TestSimilarity:
    def test_clusters(self, vectors: Read) -> None:
        case = next(c for c in vectors("gigpo.json") if c["name"] == "similarity_near_strings")
        for run in case["runs"]:
            ours = anchors(case["inputs"], run["params"])
            assert partition(ours) == partition(run["step_group"]), run["params"]


def partition(ids: Sequence[Any]) -> list[int]:
    names: dict[Any, int] = {}
    return [names.setdefault(i, len(names)) for i in ids]


class TestHGPO:
    def test_advantages(
        self, vectors: Read, step_table: Read, first_unmasked: Read, assert_agree: Read
    ) -> None:
        compared = 0
        for case in vectors("hgpo.json"):
            inputs, table = case["inputs"], step_table(case["inputs"])
            for run in case["runs"]:
                params, where = run["params"], f"{case['name']} {run['params']}"
                ours = hgpo(table, gamma=0.95, compat="verl-agent", **options_of(params))
                theirs = first_unmasked(run["advantages"], inputs["response_mask"])
                seen = np.array(inputs["response_mask"]).any(axis=1)
                assert_agree(ours[seen], theirs[seen], where=where)
                if "row_advantage" in run:
                    assert_agree(ours, np.array(run["row_advantage"]), where=where)
                compared += 1
        assert compared == 252

    def test_rounding_noise_takes_part_in_compat_mode_alone(self, vectors: Read, step_table: Read) -> None:
        for case in vectors("hgpo_rounding.json"):
            table = step_table(case["inputs"], reward=first_differences(case["inputs"]["step_rewards"]))
            options: dict[str, Any] = {"gamma": 1.0, "history": 1}
            for mode in ("mean_norm", "mean_std_norm"):
                options["norm"] = NORMS[mode]
                got = hgpo(table, compat="verl-agent", **options)
                np.testing.assert_allclose(got, case[mode], rtol=1e-5, atol=1e-9, err_msg=f"{case['v']}")
                right = hgpo(table, **options)
                assert (right[[0, 2, 4, 6]] == 0).all()
                share = right[1] / (case["v"] if mode == "mean_norm" else 1.0)
                assert share == pytest.approx(0.25 if mode == "mean_norm" else 0.57735, rel=1e-4)


def options_of(params: dict[str, Any]) -> dict[str, Any]:
    return {
        "norm": NORMS[params["mode"]],
        "history": params["history_length"],
        "alpha": params["length_weight_alpha"],
        "base": params["base_group"],
    }


def first_differences(returns: Sequence[float]) -> list[float]:
    """Rewards of rollouts of two steps whose undiscounted returns these are."""
    pairs = np.array(returns, np.float64).reshape(-1, 2)
    return np.stack([pairs[:, 0] - pairs[:, 1], pairs[:, 1]], axis=1).reshape(-1).tolist()


class TestUIS1:
    def test_advantages(
        self, vectors: Read, step_table: Read, first_unmasked: Read, assert_agree: Read, equal_groups: Read
    ) -> None:
        for case in vectors("uis1.json"):
            inputs = case["inputs"]
            table = step_table(inputs, turn=inputs["step_index"], matched=inputs["extract_match"])
            for gamma, expected in case["returns"].items():
                np.testing.assert_allclose(
                    matched_returns(table, float(gamma)), expected, rtol=1e-5, atol=1e-5
                )
            scores = table.scores()[table.rollout]
            places = [f"{g}/{t}" for g, t in zip(inputs["index"], inputs["step_index"], strict=True)]
            told = ~equal_groups(scores, inputs["index"]) & ~equal_groups(case["returns"]["0.5"], places)
            for run in case["runs"]:
                params = run["params"]
                ours = ui_s1(
                    table,
                    norm=NORMS[params["mode"]],
                    step_weight=params["step_advantage_w"],
                    episode_weight=params["episode_advantage_w"],
                    compat="verl-agent",
                )
                seen = told & np.array(inputs["response_mask"]).any(axis=1)
                theirs = first_unmasked(run["advantages"], inputs["response_mask"])
                assert_agree(ours[seen], theirs[seen], where=f"{case['name']} {params}")


class TestRowStatistics:
    def test_advantages(
        self, vectors: Read, step_table: Read, first_unmasked: Read, assert_agree: Read, equal_groups: Read
    ) -> None:
        compared = 0
        for case in vectors("verl_agent_trajectory.json"):
            inputs, table = case["inputs"], step_table(case["inputs"])
            flat = equal_groups(table.scores()[table.rollout], inputs["index"])
            for run in case["runs"]:
                params, options = run["params"], {}
                if "norm_adv_by_std_in_grpo" in params:
                    options["norm"] = NORMS[params["norm_adv_by_std_in_grpo"]]
                by_row = params["compute_mean_std_cross_steps"]
                quirks = ["lone-raw", *(["row-statistics"] if by_row else [])]
                if run["estimator"] == "reinforce_plus_plus_baseline":
                    quirks.append("token-statistics")
                ours = estimators[run["estimator"]](table, compat=quirks, **options)
                theirs = first_unmasked(run["advantages"], inputs["response_mask"])
                seen = np.array(inputs["response_mask"]).any(axis=1) & ~flat
                assert_agree(ours[seen], theirs[seen], where=f"{case['name']} {run['estimator']} {params}")
                compared += 1
        assert compared == 72
