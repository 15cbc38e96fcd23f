"""The estimators of verl, of TreePO and of A^3 against the authors' numbers, in compat mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from palestra.training.advantages import (
    dr_grpo,
    gae,
    gpg,
    grpo,
    opo,
    optimal_token_baseline,
    passk_grpo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rloo,
    spo,
    tree_progress,
    treepo,
)
from palestra.training.advantages.a3 import decision_returns, median_backbone
from palestra.training.advantages.groups import paired
from palestra.training.table import StepTable, factorise
from palestra.trajectories.model import FloatArray

Array = npt.NDArray[Any]
Read = Callable[..., Any]
Estimate = Callable[[StepTable, dict[str, Any]], FloatArray]


def norm(params: dict[str, Any]) -> Any:
    return "std" if params["norm_adv_by_std_in_grpo"] else "none"


BY_SEQUENCE: dict[str, Estimate] = {
    "grpo": lambda t, p: grpo(t, norm=norm(p), compat="verl"),
    "grpo_vectorized": lambda t, p: grpo(t, norm=norm(p), compat="verl-vectorized"),
    "grpo_passk": lambda t, p: passk_grpo(t, norm=norm(p)),
    "rloo": lambda t, p: rloo(t, compat="verl"),
    "rloo_vectorized": lambda t, p: rloo(t),
    "opo": lambda t, p: opo(t, compat="verl"),
    "gpg": lambda t, p: gpg(t, compat="verl"),
    "reinforce_plus_plus_baseline": lambda t, p: reinforce_plus_plus_baseline(t, compat="verl"),
}


@pytest.mark.parametrize("name", BY_SEQUENCE)
def test_estimators_by_sequence(
    name: str,
    vectors: Read,
    sequence_table: Read,
    first_unmasked: Read,
    assert_agree: Read,
    equal_groups: Read,
) -> None:
    compared = 0
    for case in vectors("verl_advantages.json"):
        inputs, table = case["inputs"], sequence_table(case["inputs"])
        seen = np.array(inputs["response_mask"]).any(axis=1)
        flat = equal_groups(table.reward, inputs["index"])
        for run in (r for r in case["runs"] if r["estimator"] == name and "error" not in r):
            ours = BY_SEQUENCE[name](table, run["params"])
            theirs = first_unmasked(run["advantages"], inputs["response_mask"])
            if name == "reinforce_plus_plus_baseline":
                flat = np.zeros(len(flat), bool)
            if flat.all():
                assert (np.abs(theirs) < 0.2).all() and (ours == 0).all()
                continue
            assert_agree(ours[seen], theirs[seen], equal=flat[seen], where=f"{case['name']} {run['params']}")
            compared += 1
    assert compared >= 6


def test_pass_at_k_of_one_rollout_is_an_error_there_and_nothing_here(
    vectors: Read, sequence_table: Read
) -> None:
    case = next(c for c in vectors("verl_advantages.json") if c["name"] == "singles")
    assert any("error" in r for r in case["runs"])
    assert (passk_grpo(sequence_table(case["inputs"])) == 0).all()


BY_TOKEN: dict[str, Estimate] = {
    "reinforce_plus_plus": lambda t, p: reinforce_plus_plus(t, gamma=p["gamma"], compat="verl"),
    "remax": lambda t, p: remax(t),
    "gae": lambda t, p: gae(t, gamma=p["gamma"], lam=p["lam"], compat="verl"),
    "tir_optimal_token_baseline": lambda t, p: optimal_token_baseline(
        t, zero_tail=p["handle_zero_tail"], compat="verl"
    ),
}


@pytest.mark.parametrize("name", BY_TOKEN)
def test_estimators_by_token(name: str, vectors: Read, token_table: Read, assert_agree: Read) -> None:
    compared = 0
    for case in vectors("verl_advantages.json"):
        inputs = case["inputs"]
        mask = np.array(inputs["response_mask"]).astype(bool)
        for run in (r for r in case["runs"] if r["estimator"] == name):
            table = token_table(inputs, **token_columns(inputs, run["params"]))
            ours, theirs = BY_TOKEN[name](table, run["params"]), np.array(run["advantages"])[mask]
            flat = np.full(len(ours), name in ("reinforce_plus_plus", "gae") and np.ptp(theirs) < 1e-6)
            assert_agree(ours, theirs, equal=flat, where=f"{case['name']} {run['params']}")
            compared += 1
    assert compared >= 7


def token_columns(inputs: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    width = len(inputs["response_mask"][0])
    p = np.exp(np.array(inputs["old_log_probs"]))
    energy = 1 - 2 * p + np.array(inputs["sum_pi_squared"])
    if params.get("rollout_is_weights"):
        energy = energy * np.array(inputs["rollout_is_weights"]) ** 2
    baselines = np.repeat(np.array(inputs["reward_baselines"])[:, None], width, axis=1)
    return {"value": inputs["values"], "baseline": baselines, "energy": energy}


def test_the_form_without_compaction_is_the_same_where_no_token_is_masked_in_between(
    vectors: Read, token_table: Read, assert_agree: Read
) -> None:
    compared = 0
    for case in vectors("verl_advantages.json"):
        mask = np.array(case["inputs"]["response_mask"]).astype(bool)
        if (np.diff(mask.astype(int), axis=1) > 0).any():
            continue
        for run in (r for r in case["runs"] if r["estimator"] == "optimal_token_baseline"):
            table = token_table(case["inputs"], **token_columns(case["inputs"], run["params"]))
            ours = BY_TOKEN["tir_optimal_token_baseline"](table, run["params"])
            assert_agree(ours, np.array(run["advantages"])[mask], where=f"{case['name']} {run['params']}")
            compared += 1
    assert compared >= 20


def test_dr_grpo_is_grpo_without_the_division(
    vectors: Read, sequence_table: Read, first_unmasked: Read, assert_agree: Read
) -> None:
    case = next(c for c in vectors("verl_advantages.json") if c["name"] == "normal")
    run = next(r for r in case["runs"] if r["params"].get("norm_adv_by_std_in_grpo") is False)
    theirs = first_unmasked(run["advantages"], case["inputs"]["response_mask"])
    assert_agree(dr_grpo(sequence_table(case["inputs"])), theirs)


STEP_TOKENS = 3

BY_SEGMENT: dict[str, Estimate] = {
    "tree_reinforce_plus_plus_baseline": lambda t, p: treepo(
        t,
        weighting={"group_size": "size", "average": "average"}[p["adv_weight_strategy"]],  # type: ignore[arg-type]
        skip_equal=p["remove_no_std_subgroup"],
        compat="treepo",
    ),
    "tree_rfpp_progress": lambda t, p: tree_progress(
        t, parent_decay=p["adv_eta"] if p["adv_eta"] > 0 else None, compat="treepo"
    ),
    "spo": lambda t, p: spo(t),
}


@pytest.mark.parametrize("name", BY_SEGMENT)
def test_trees(name: str, vectors: Read, assert_agree: Read) -> None:
    compared = 0
    for case in vectors("treepo.json"):
        inputs = case["inputs"]
        mask = np.array(inputs["response_mask"]).astype(bool)
        table, row_of_token = segments(inputs, mask)
        for run in (r for r in case["runs"] if r["fn"] == name):
            ours = BY_SEGMENT[name](table, run["params"])[row_of_token]
            theirs = np.array(run["advantages"])[mask]
            assert_agree(ours, theirs, where=f"{case['name']} {run['params']}")
            compared += 1
    assert compared >= 6


def segments(inputs: dict[str, Any], mask: Array) -> tuple[StepTable, list[int]]:
    """One row per segment of a path, with what is left of the sequence in a row without a node; row per token."""
    columns: dict[str, list[Any]] = {
        n: [] for n in ("group", "rollout", "turn", "reward", "tokens", "node", "anchor")
    }
    row_of: list[int] = []
    for i, path in enumerate(inputs["index"]):
        parts = path.split("#")
        names = ["#".join(parts[: d + 1]) for d in range(1, len(parts))]
        bounds = [*range(0, STEP_TOKENS * len(names), STEP_TOKENS), STEP_TOKENS * len(names), mask.shape[1]]
        bounds = [min(b, mask.shape[1]) for b in bounds]
        for turn, node in enumerate([*names, None]):
            span = slice(bounds[turn], max(bounds[turn], bounds[turn + 1]))
            row = len(columns["group"])
            row_of += [row] * int(mask[i, span].sum())
            values = (parts[0], i, turn, 0.0, int(mask[i, span].sum()), node, None)
            for column, value in zip(columns, values, strict=True):
                columns[column].append(value)
        columns["reward"][-1] = float(np.sum(inputs["token_level_rewards"][i]))
    return StepTable.from_columns(**columns), row_of


def test_a3(vectors: Read) -> None:
    for case in vectors("a3_components.json"):
        inputs, size = case["inputs"], len(case["inputs"]["prompt"])
        ends = [inputs["traj"][i : i + 2] != [t] * 2 for i, t in enumerate(inputs["traj"])]
        table = StepTable.from_columns(
            group=inputs["prompt"],
            rollout=inputs["traj"],
            turn=inputs["turn"],
            reward=[s * e for s, e in zip(inputs["episode_score"], ends, strict=True)],
            anchor=inputs["state_obs"],
            action=inputs["action"],
        )
        np.testing.assert_allclose(
            median_backbone(table)[table.rollout],
            case["backbone"],
            rtol=1e-5,
            atol=1e-6,
            err_msg=case["name"],
        )
        state = paired(paired(table.group, table.anchor), factorise(inputs["turn"]))
        value, support = decision_returns(table, state)
        np.testing.assert_allclose(value, case["tree_return"], rtol=1e-5, atol=1e-5, err_msg=case["name"])
        np.testing.assert_allclose(support, case["tree_support"], rtol=1e-5, atol=1e-5, err_msg=case["name"])
        assert size == len(table)
