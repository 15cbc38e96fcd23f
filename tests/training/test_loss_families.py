"""What holds for every loss: parts add up, padding is absent, and on-policy all are the policy gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from palestra.training.losses import (
    cispo_loss,
    clipped_loss,
    decoupled_loss,
    effective_sample_size,
    gmpo_loss,
    gspo_loss,
    keep_mask,
    kl_estimate,
    learning_rate_scale,
    minpro_ratios,
    off_policy_baseline,
    policy_gradient_loss,
    proximal_logprobs,
    sapo_loss,
    sequence_ratios,
    token_weights,
    truncated_ratios,
)

Loss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "clipped": lambda p, q, a, w, s: clipped_loss(p, q, a, w).loss,
    "gspo": lambda p, q, a, w, s: gspo_loss(p, q, a, w, s, clip_low=0.2, clip_high=0.2).loss,
    "gmpo": lambda p, q, a, w, s: gmpo_loss(p, q, a, w, s).loss,
    "cispo": lambda p, q, a, w, s: cispo_loss(p, q, a, w).loss,
    "sapo": lambda p, q, a, w, s: sapo_loss(p, q, a, w).loss,
    "decoupled": lambda p, q, a, w, s: decoupled_loss(p, q, q - 0.1, a, w).loss,
    "policy_gradient": lambda p, q, a, w, s: policy_gradient_loss(p, a, w * truncated_ratios(p - q)),
}
every = pytest.mark.parametrize("name", LOSSES)
AGGREGATIONS: list[Any] = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "token-sum"]


def make_tokens(seed: int, lengths: list[int]) -> dict[str, Tensor]:
    """float64 tokens of sequences of the given lengths; the advantage is the same throughout a sequence."""
    generator = torch.Generator().manual_seed(seed)
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    old = -torch.rand(len(sequence), generator=generator, dtype=torch.float64) * 3
    new = old + torch.randn(len(sequence), generator=generator, dtype=torch.float64) * 0.3
    advantages = torch.randn(len(lengths), generator=generator, dtype=torch.float64)[sequence]
    return {"new": new, "old": old, "advantages": advantages, "sequence": sequence}


def gradient(name: str, t: dict[str, Tensor], weights: Tensor) -> Tensor:
    leaf = t["new"].clone().requires_grad_()
    LOSSES[name](leaf, t["old"], t["advantages"], weights, t["sequence"]).backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    return leaf.grad


@every
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    lengths=st.lists(st.integers(1, 5), min_size=2, max_size=6),
    mode=st.sampled_from(AGGREGATIONS),
)
def test_splitting_into_micro_batches_changes_no_gradient(
    name: str, seed: int, lengths: list[int], mode: Any
) -> None:
    t = make_tokens(seed, lengths)
    totals = {"tokens": float(sum(lengths)), "sequences": float(len(lengths)), "horizon": 7.0}
    whole = gradient(name, t, token_weights(t["sequence"], mode, **totals).double())
    parts = []
    for at in (t["sequence"] < 1, t["sequence"] >= 1):
        part = {k: v[at] for k, v in t.items()}
        parts.append(gradient(name, part, token_weights(part["sequence"], mode, **totals).double()))
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-6, atol=1e-9)


@every
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_on_policy_every_loss_has_the_policy_gradient(name: str, seed: int, lengths: list[int]) -> None:
    t = make_tokens(seed, lengths)
    t["old"] = t["new"]
    weights = token_weights(t["sequence"], "seq-mean-token-mean").double()
    expected = -t["advantages"] * weights * (math.exp(0.1) if name == "decoupled" else 1.0)
    torch.testing.assert_close(gradient(name, t, weights), expected)


@every
def test_no_tokens_cost_nothing(name: str) -> None:
    t = {k: v[:0] for k, v in make_tokens(0, [2]).items()}
    assert gradient(name, t, token_weights(t["sequence"], "token-mean")).shape == (0,)


@every
def test_far_apart_probabilities_stay_finite(name: str) -> None:
    t = make_tokens(0, [2, 2])
    t["new"], t["old"] = t["old"] * 200, t["new"].clone()
    assert bool(gradient(name, t, torch.ones(4, dtype=torch.float64)).isfinite().all())


class TestAggregation:
    sequence = torch.tensor([4, 4, 4, 9])

    def test_each_mode(self) -> None:
        got = {m: token_weights(self.sequence, m, horizon=8).tolist() for m in AGGREGATIONS}
        assert got["token-mean"] == [0.25] * 4
        assert got["seq-mean-token-sum"] == [0.5] * 4
        assert got["seq-mean-token-mean"] == pytest.approx([1 / 6] * 3 + [0.5])
        assert got["token-sum"] == [0.125] * 4

    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="aggregation is one of token-mean, .*, got 'mean'"):
            token_weights(self.sequence, "mean")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="token-sum divides by a constant: give horizon="):
            token_weights(self.sequence, "token-sum")


class TestKl:
    def test_plus_forms_have_their_value_and_the_gradient_of_k2(self) -> None:
        for kind in ("k1", "k3"):
            leaf = torch.tensor([-1.0, -2.0], requires_grad=True)
            reference = torch.tensor([-1.5, -1.0])
            got = kl_estimate(leaf, reference, kind + "+")  # type: ignore[arg-type]
            torch.testing.assert_close(got, kl_estimate(leaf, reference, kind))
            got.sum().backward()  # type: ignore[no-untyped-call]
            assert leaf.grad is not None
            torch.testing.assert_close(leaf.grad, (leaf - reference).detach())

    def test_estimates_agree_with_the_divergence(self) -> None:
        """Three tokens, weighed by their probability."""
        p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.4, 0.2])
        exact = float((p * (p / q).log()).sum())
        for kind in ("k1", "k3"):
            got = float((p * kl_estimate(p.log(), q.log(), kind)).sum())
            assert got == pytest.approx(exact, abs=1e-6)

    def test_an_unknown_kind_is_refused(self) -> None:
        with pytest.raises(ValueError, match="a KL estimate is one of k1, abs, k2"):
            kl_estimate(torch.zeros(1), torch.zeros(1), "k4")  # type: ignore[arg-type]


class TestImportance:
    ratio = torch.tensor([0.1, 1.0, 3.0, 9.0])
    sequence = torch.tensor([0, 0, 1, 1])

    def test_bounds_are_those_of_the_ratio_of_training_to_sampling(self) -> None:
        """verl's code bounds the inverse: its "0.5_4.0" would keep 0.25 to 2."""
        log_ratio = torch.tensor([0.3, 0.6, 3.0, 5.0]).log()
        assert keep_mask(log_ratio, self.sequence, lower=0.5, upper=4.0).tolist() == [
            False,
            True,
            True,
            False,
        ]

    def test_truncation_caps_and_never_raises(self) -> None:
        assert truncated_ratios(self.ratio.log()).tolist() == pytest.approx([0.1, 1.0, 2.0, 2.0])
        got = sequence_ratios(self.ratio.log(), self.sequence, cap=5.0)
        assert got.tolist() == pytest.approx([0.1, 0.1, 5.0, 5.0])
        assert float(truncated_ratios(self.ratio.log(), normalise=True).mean()) == pytest.approx(1.0)

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"upper": 0.0}, "bounds are positive"),
            ({"upper": 1.0, "lower": 0.5, "divergence": "k2"}, "has no lower bound"),
            ({"upper": 2.0, "level": "max"}, "the maximum of k1"),
        ],
    )
    def test_refusals(self, options: Any, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            keep_mask(self.ratio.log(), self.sequence, **options)

    def test_minpro(self) -> None:
        got = minpro_ratios(torch.tensor([0.5, 2.0, 3.0, 4.0]).log(), torch.tensor([0, 0, 0, 1]))
        assert got.tolist() == pytest.approx([0.5, 1.0, 1.5, 4.0])


def test_an_unknown_approximation_is_refused() -> None:
    zeros = torch.zeros(1)
    with pytest.raises(ValueError, match="an approximation is one of loglinear, linear, rollout"):
        proximal_logprobs(zeros, zeros, zeros, 1, "magic")  # type: ignore[arg-type]


class TestVCPO:
    @given(st.lists(st.floats(0.01, 10), min_size=1, max_size=20))
    def test_the_sample_is_worth_between_one_and_all(self, weights: list[float]) -> None:
        ratios = torch.tensor(weights, dtype=torch.float64).numpy()
        assert 1 - 1e-9 <= effective_sample_size(ratios) <= len(weights) + 1e-9
        assert 0 < learning_rate_scale(ratios, kind="linear") <= learning_rate_scale(ratios) <= 1

    def test_nothing_sampled(self) -> None:
        none = torch.zeros(0, dtype=torch.float64).numpy()
        assert effective_sample_size(none) == learning_rate_scale(none) == 0.0
        assert off_policy_baseline(none, none) == 0.0

    def test_the_baseline_has_least_variance(self) -> None:
        rewards, norms = (torch.tensor(v, dtype=torch.float64).numpy() for v in ([1.0, 0.0], [3.0, 1.0]))
        best = off_policy_baseline(rewards, norms)
        spread = [float((norms**2 * (rewards - b) ** 2).sum()) for b in (best, best - 0.05, best + 0.05)]
        assert min(spread) == spread[0]
