"""The clipped loss against verl's numbers, and each of its bounds by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from palestra.training.losses import clipped_loss

Vectors = Callable[[str], Any]


def with_gradient(logprobs: Tensor, *inputs: Tensor, **options: Any) -> tuple[float, Tensor, float, float]:
    """(loss, its gradient, clipped, kl)."""
    leaf = logprobs.clone().requires_grad_()
    result = clipped_loss(leaf, *inputs, **options)
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert leaf.grad is not None
    return float(result.loss.detach()), leaf.grad, float(result.clipped), float(result.kl)


def test_verl_vanilla(vectors: Vectors) -> None:
    compared = 0
    for case in vectors("verl_policy_loss.json"):
        inputs = {name: torch.tensor(value) for name, value in case["inputs"].items() if name != "note"}
        mask = inputs["response_mask"].bool()
        weights = torch.full((int(mask.sum()),), 1.0 / int(mask.sum()))
        for run in case["runs"]:
            params = run["params"]
            if (
                run["loss_name"] != "vanilla"
                or params["loss_agg_mode"] != "token-mean"
                or params["rollout_is_weights"]
            ):
                continue
            compared += 1
            loss, gradient, clipped, _ = with_gradient(
                inputs["log_prob"][mask],
                inputs["old_log_prob"][mask],
                inputs["advantages"][mask],
                weights,
                clip_low=params["clip_ratio_low"],
                clip_high=params["clip_ratio_high"],
                dual_clip=params["clip_ratio_c"],
            )
            assert loss == pytest.approx(run["loss"], rel=1e-5, abs=1e-6), case["name"]
            expected = torch.tensor(run["grad_log_prob"])[mask]
            torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
            assert clipped == pytest.approx(run["metrics"]["actor/pg_clipfrac"], abs=1e-6)
    assert compared == 14


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "flows"),
    [
        (1.0, 1.1, -1.1, True),
        (1.0, 1.5, -1.28, False),
        (1.0, 0.5, -0.5, True),
        (-1.0, 0.5, 0.8, False),
        (-1.0, 2.0, 2.0, True),
        (-1.0, 9.0, 3.0, False),
        (0.0, 2.0, 0.0, True),
    ],
)
def test_each_bound(advantage: float, ratio: float, loss: float, flows: bool) -> None:
    got, gradient, clipped, _ = with_gradient(
        torch.tensor([math.log(ratio)]), torch.zeros(1), torch.tensor([advantage]), torch.ones(1)
    )
    assert got == pytest.approx(loss)
    assert float(gradient) == pytest.approx(-advantage * ratio if flows else 0.0)
    assert clipped == (0.0 if flows or ratio == 9.0 else 1.0)


def test_without_dual_clip_a_bad_token_may_cost_anything() -> None:
    inputs = torch.tensor([math.log(9.0)]), torch.zeros(1), torch.tensor([-1.0]), torch.ones(1)
    assert with_gradient(*inputs, dual_clip=None)[0] == pytest.approx(9.0)


def test_far_apart_probabilities_stay_finite() -> None:
    loss, gradient, _, kl = with_gradient(
        torch.tensor([0.0, -500.0]), torch.tensor([-500.0, 0.0]), torch.ones(2), torch.ones(2)
    )
    assert math.isfinite(loss) and math.isfinite(kl) and bool(gradient.isfinite().all())


def test_only_the_new_logprobs_are_differentiated() -> None:
    inputs = [torch.zeros(3, requires_grad=True) for _ in range(4)]
    clipped_loss(*inputs).loss.backward()  # type: ignore[no-untyped-call]
    assert inputs[0].grad is not None


@given(
    st.lists(
        st.tuples(*[st.floats(-3, 0, width=32)] * 2, st.floats(-2, 2, width=32)), min_size=2, max_size=12
    ),
    st.integers(1, 11),
)
def test_the_loss_of_parts_adds_up(tokens: list[tuple[float, float, float]], cut: int) -> None:
    new, old, advantages = torch.tensor(tokens, dtype=torch.float64).T
    weights = torch.linspace(0.5, 1.5, len(tokens), dtype=torch.float64)
    whole = clipped_loss(new, old, advantages, weights)
    parts = [clipped_loss(new[s], old[s], advantages[s], weights[s]) for s in (slice(cut), slice(cut, None))]
    for name in ("loss", "clipped", "kl"):
        assert float(sum(getattr(p, name) for p in parts)) == pytest.approx(
            float(getattr(whole, name)), abs=1e-9
        )
    assert float(whole.kl) >= -1e-12


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    logprobs, advantages = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([1.0, -2.0, 0.5])
    _, gradient, clipped, kl = with_gradient(logprobs, logprobs, advantages, torch.full((3,), 1 / 3))
    torch.testing.assert_close(gradient, -advantages / 3)
    assert clipped == kl == 0.0
