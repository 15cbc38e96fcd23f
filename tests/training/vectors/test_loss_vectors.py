"""Losses, aggregation and importance correction against the numbers of verl, AReaL and VCPO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palestra.training.losses import (
    PolicyLoss,
    cispo_loss,
    clipped_loss,
    decoupled_loss,
    effective_sample_size,
    gmpo_loss,
    gspo_loss,
    keep_mask,
    kl_estimate,
    learning_rate_scale,
    off_policy_baseline,
    policy_gradient_loss,
    proximal_logprobs,
    sapo_loss,
    sequence_ratios,
    token_weights,
    truncated_ratios,
)

Read = Callable[..., Any]
MODES = {"seq-mean-token-sum-norm": "token-sum"}


class Flat:
    """A padded batch as flat tokens."""

    def __init__(self, inputs: dict[str, Any], mask: str) -> None:
        self.mask = torch.tensor(inputs[mask]).bool()
        self.sequence = self.mask.nonzero()[:, 0]
        self.rows, self.width = self.mask.shape
        self.values = {k: torch.tensor(v) for k, v in inputs.items() if isinstance(v, list)}

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name][self.mask]

    def weights(self, mode: str, **totals: Any) -> Tensor:
        totals = {"horizon": float(self.width)} | totals
        return token_weights(self.sequence, MODES.get(mode, mode), **totals)  # type: ignore[arg-type]


def test_aggregation(vectors: Read) -> None:
    compared = 0
    for case in vectors("verl_agg_loss.json"):
        flat = Flat(case["inputs"], "loss_mask")
        for run in case["runs"]:
            params = run["params"]
            ranks = params.get("dp_size", 1)
            totals = {
                "tokens": params.get("batch_num_tokens", len(flat.sequence)) / ranks,
                "horizon": params.get("loss_scale_factor", flat.width),
            }
            if "global_batch_size" in params:
                totals["sequences"] = params["global_batch_size"] / ranks
            got = float((flat["loss_mat"] * flat.weights(params["loss_agg_mode"], **totals)).sum())
            expected = run["loss"]
            if isinstance(expected, str):
                assert got == 0.0
                continue
            assert got == pytest.approx(expected, rel=1e-5, abs=1e-6), f"{case['name']} {params}"
            compared += 1
    assert compared >= 60


def policy_loss(flat: Flat, logprobs: Tensor, name: str, params: dict[str, Any]) -> Tensor:
    weights = flat.weights(params["loss_agg_mode"])
    if name == "geo_mean":
        weights = flat.weights("seq-mean-token-mean", sequences=float(flat.rows))
    if params["rollout_is_weights"]:
        weights = weights * flat["rollout_is_weights"]
    both = (logprobs, flat["old_log_prob"], flat["advantages"], weights)
    clip: dict[str, Any] = {
        "clip_low": params.get("clip_ratio_low"),
        "clip_high": params.get("clip_ratio_high"),
    }
    results: dict[str, Callable[[], PolicyLoss]] = {
        "vanilla": lambda: clipped_loss(*both, dual_clip=params["clip_ratio_c"], **clip),
        "gspo": lambda: gspo_loss(*both, flat.sequence, **clip),
        "geo_mean": lambda: gmpo_loss(*both, flat.sequence, **clip),
        "cispo": lambda: cispo_loss(*both, **clip),
        "sapo": lambda: sapo_loss(*both, tau_positive=params["tau_pos"], tau_negative=params["tau_neg"]),
    }
    if name in ("gpg", "reinforce"):
        return policy_gradient_loss(logprobs, flat["advantages"], weights)
    return results[name]().loss


LOSSES = ["vanilla", "gspo", "geo_mean", "cispo", "sapo", "gpg", "reinforce"]


@pytest.mark.parametrize("name", LOSSES)
def test_policy_losses(name: str, vectors: Read) -> None:
    compared = 0
    for case in vectors("verl_policy_loss.json"):
        flat = Flat(case["inputs"], "response_mask")
        for run in (r for r in case["runs"] if r["loss_name"] == name):
            logprobs = flat["log_prob"].clone().requires_grad_()
            loss = policy_loss(flat, logprobs, name, run["params"])
            loss.backward()  # type: ignore[no-untyped-call]
            where = f"{case['name']} {run['params']}"
            assert float(loss.detach()) == pytest.approx(run["loss"], rel=2e-5, abs=1e-6), where
            expected = torch.tensor(run["grad_log_prob"])[flat.mask]
            assert logprobs.grad is not None
            torch.testing.assert_close(logprobs.grad, expected, rtol=2e-5, atol=1e-6, msg=where)
            compared += 1
    assert compared >= 7


def test_kl_estimates(vectors: Read) -> None:
    compared = 0
    for case in vectors("verl_policy_loss.json"):
        flat = Flat(case["inputs"], "response_mask")
        for run in (r for r in case["runs"] if r["loss_name"] == "kl_penalty" and "error" not in r):
            logprobs = flat["log_prob"].clone().requires_grad_()
            estimate = kl_estimate(logprobs, flat["ref_log_prob"], run["params"]["kl_penalty"])
            expected = torch.tensor(run["kl"])[flat.mask]
            torch.testing.assert_close(estimate.detach(), expected, rtol=2e-5, atol=1e-6)
            estimate.mean().backward()  # type: ignore[no-untyped-call]
            assert logprobs.grad is not None
            gradient = torch.tensor(run["grad_log_prob"])[flat.mask]
            torch.testing.assert_close(logprobs.grad, gradient, rtol=2e-5, atol=1e-6)
            compared += 1
    assert compared == 28


class TestRolloutCorrection:
    def test_weights(self, vectors: Read) -> None:
        compared = 0
        for case in vectors("verl_rollout_correction.json"):
            flat = Flat(case["inputs"], "response_mask")
            log_ratio = flat["old_log_prob"] - flat["rollout_log_prob"]
            for run in (r for r in case["runs"] if "weights" in r):
                p = run["params"]
                options = {"cap": p["rollout_is_threshold"], "normalise": p["rollout_is_batch_normalize"]}
                if p["rollout_is"] == "token":
                    got = truncated_ratios(log_ratio, **options)
                else:
                    got = sequence_ratios(log_ratio, flat.sequence, **options)
                expected = torch.tensor(run["weights"])[flat.mask]
                torch.testing.assert_close(got, expected, rtol=2e-5, atol=1e-6, msg=f"{case['name']} {p}")
                compared += 1
        assert compared == 54

    def test_rejection(self, vectors: Read) -> None:
        compared = 0
        for case in vectors("verl_rollout_correction.json"):
            flat = Flat(case["inputs"], "response_mask")
            log_ratio = flat["old_log_prob"] - flat["rollout_log_prob"]
            for run in (r for r in case["runs"] if "rollout_rs" in r["params"]):
                got = torch.ones(len(log_ratio), dtype=torch.bool)
                names = run["params"]["rollout_rs"].split(",")
                bounds = str(run["params"]["rollout_rs_threshold"]).split(",")
                for name, bound in zip(names, bounds, strict=True):
                    got &= keep_mask(log_ratio, flat.sequence, **verl_criterion(name, bound))
                expected = torch.tensor(run["mask"])[flat.mask].bool()
                assert torch.equal(got, expected), f"{case['name']} {run['params']}"
                compared += 1
        assert compared >= 80


def verl_criterion(name: str, bound: str) -> dict[str, Any]:
    """verl bounds the inverse ratio: its "a_b" is 1/b to 1/a of ours."""
    level = {"token": "token", "seq_sum": "sum", "seq_mean": "mean", "seq_max": "max"}[name[:-3]]
    if not name.endswith("k1"):
        return {"level": level, "divergence": name[-2:], "upper": float(bound)}
    low, _, high = bound.partition("_")
    upper, lower = (float(high), float(low)) if high else (float(low), 1 / float(low))
    return {"level": level, "divergence": "k1", "upper": 1 / lower, "lower": 1 / upper}


class TestDecoupled:
    def test_by_token(self, vectors: Read) -> None:
        """AReaL's actions: mask leaves tokens out under the old denominator, clamp bounds the correction."""
        compared = 0
        for case in vectors("areal_decoupled_ppo.json"):
            flat = Flat(case["inputs"], "loss_mask")
            for run in case["runs"]:
                p, rejection = run["params"], run["params"]["rejection_sampling"]
                if p["importance_sampling_level"] != "token":
                    continue
                weights, behaviour = areal_weights(flat, rejection)
                logprobs = flat["logprobs"].clone().requires_grad_()
                result = decoupled_loss(
                    logprobs,
                    flat["proximal_logprobs"],
                    behaviour,
                    flat["advantages"],
                    weights,
                    clip_low=p["eps_clip"],
                    clip_high=p["eps_clip_higher"],
                    dual_clip=p["c_clip"],
                    cap=None,
                )
                result.loss.backward()  # type: ignore[no-untyped-call]
                where = f"{case['name']} {p}"
                assert float(result.loss.detach()) == pytest.approx(run["loss"], rel=2e-5, abs=1e-6), where
                expected = torch.tensor(run["grad_logprobs"])[flat.mask]
                torch.testing.assert_close(logprobs.grad, expected, rtol=2e-5, atol=1e-6, msg=where)
                compared += 1
        assert compared >= 60

    def test_by_sequence(self, vectors: Read) -> None:
        """GSPO about the proximal policy, with the mean advantage of each sequence."""
        compared = 0
        for case in vectors("areal_decoupled_ppo.json"):
            flat = Flat(case["inputs"], "loss_mask")
            lengths = torch.bincount(flat.sequence, minlength=flat.rows).clamp(min=1)
            summed = torch.zeros(flat.rows).index_add(0, flat.sequence, flat["advantages"])
            advantages = (summed / lengths)[flat.sequence]
            for run in case["runs"]:
                p = run["params"]
                if p["importance_sampling_level"] == "token" or p["rejection_sampling"] or p["c_clip"]:
                    continue
                logprobs = flat["logprobs"].clone().requires_grad_()
                weights = flat.weights("token-mean")
                clip: dict[str, Any] = {"clip_low": p["eps_clip"], "clip_high": p["eps_clip_higher"]}
                got = gspo_loss(
                    logprobs, flat["proximal_logprobs"], advantages, weights, flat.sequence, **clip
                ).loss
                got.backward()  # type: ignore[no-untyped-call]
                assert float(got.detach()) == pytest.approx(run["loss"], rel=2e-5, abs=1e-6)
                expected = torch.tensor(run["grad_logprobs"])[flat.mask]
                torch.testing.assert_close(logprobs.grad, expected, rtol=2e-5, atol=1e-6)
                compared += 1
        assert compared == 6

    def test_proximal_approximations(self, vectors: Read) -> None:
        for case in vectors("areal_prox_approx.json"):
            inputs = {k: torch.tensor(v) for k, v in case["inputs"].items()}
            for kind, expected in case["outputs"].items():
                got = proximal_logprobs(
                    inputs["logprobs"],
                    inputs["old_logp"],
                    inputs["versions"],
                    int(inputs["current_version"]),
                    kind,
                )
                torch.testing.assert_close(got, torch.tensor(expected), rtol=2e-5, atol=1e-6)


def areal_weights(flat: Flat, rejection: dict[str, Any] | None) -> tuple[Tensor, Tensor]:
    """Token weights, and the behaviour log-probabilities that make AReaL's correction out of ours."""
    weights = torch.full((len(flat.sequence),), 1.0 / max(len(flat.sequence), 1))
    proximal = flat["proximal_logprobs"]
    if rejection is None:
        return weights, proximal
    log_ratio = proximal - flat["old_logprobs"]
    upper, lower = rejection["upper"], rejection["lower"]
    of_sequence = rejection["level"] == "sequence"
    correction = log_ratio.exp()
    if of_sequence and rejection["metric"] == "ratio":
        lengths = torch.bincount(flat.sequence, minlength=flat.rows)[flat.sequence]
        mean = torch.zeros(flat.rows).index_add(0, flat.sequence, log_ratio)[flat.sequence] / lengths
        correction = mean.exp()
    keep = keep_mask(
        log_ratio,
        flat.sequence,
        level=rejection["agg"] if of_sequence else "token",
        divergence="k1" if rejection["metric"] == "ratio" else rejection["metric"][-2:],
        upper=upper,
        lower=(lower or 1e-9) if rejection["metric"] == "ratio" else None,
    )
    if rejection["action"] == "mask":
        weights = weights * keep
    else:
        correction = torch.where(keep, correction, correction.clamp(lower or 0.0, upper))
    return weights, proximal - correction.log()


class TestVCPO:
    def test_effective_sample_size(self, vectors: Read) -> None:
        for case in vectors("vcpo.json"):
            ratios = np.array(case["inputs"]["seq_is"])
            assert effective_sample_size(ratios) == pytest.approx(case["ess"][0], rel=1e-6, abs=1e-6)
            for kind, expected in case["lr_scale"].items():
                assert learning_rate_scale(ratios, kind=kind) == pytest.approx(expected, rel=1e-6, abs=1e-6)

    def test_baseline(self, vectors: Read) -> None:
        averages: dict[str, Any] = {"mean": "mean", "median": "median", "winsorized_mean": "winsorized"}
        compared = 0
        for case in vectors("vcpo.json"):
            inputs = {k: np.array(v, float) for k, v in case["inputs"].items()}
            for run in case["runs"]:
                p = run["params"]
                group = p["scope"] == "group"
                rows = inputs["group"] == p["group_uid"] if group else np.ones(len(inputs["group"]), bool)
                ratios = inputs["seq_is_clipped" if p["use_clipped_is_ratios"] else "seq_is"]
                got = off_policy_baseline(
                    inputs["reward" if group else "advantage"][rows],
                    inputs["grad_norm"][rows],
                    ratios[rows] if p["use_is_weights"] else None,
                    lengths=inputs["length"][rows] if p["normalize_by_length"] else None,
                    average=averages[p["agg_mode"]],
                )
                assert got == pytest.approx(run["baseline"], rel=1e-5, abs=1e-7), f"{case['name']} {p}"
                compared += 1
        assert compared == 288
