"""Estimates of the KL divergence between two policies from the probabilities of sampled tokens."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Estimate = Literal["k1", "abs", "k2", "k3", "k1+", "k3+"]
LOG_RATIO_BOUND = 20.0
"""Log ratios are clamped to +-20 nats before they are exponentiated."""


def kl_estimate(logprobs: Tensor, reference: Tensor, kind: Estimate) -> Tensor:
    """Per-token estimate of KL(policy || reference) from tokens of the policy, shape (N,); inputs (N,).

    With d = logprobs - reference: k1 = d, abs = |d|, k2 = d^2 / 2, k3 = exp(-d) + d - 1, clamped to +-10. As a
    loss, only k2 has a gradient that is right in expectation: that of k1 is 0 on average, that of k3 is the
    gradient of KL(reference || policy). "k1+" and "k3+" have the value of k1 and k3 and the gradient of k2. Source:
    Schulman 2020, joschu.net/blog/kl-approx.html; code verl core_algos.py kl_penalty (whose "+" forms raise).

    Raises ValueError for an unknown kind.
    """
    if kind not in get_args(Estimate):
        raise ValueError(f"a KL estimate is one of {', '.join(get_args(Estimate))}, got {kind!r}")
    difference = logprobs - reference
    if kind.endswith("+"):
        value, slope = _forward(difference, kind[:-1]), difference.square() / 2
        return slope - slope.detach() + value.detach()
    return _forward(difference, kind)


def _forward(difference: Tensor, kind: str) -> Tensor:
    if kind == "k3":
        ratio = (-difference).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        return (ratio.exp() - ratio - 1.0).clamp(-10.0, 10.0)
    return {"k1": difference, "abs": difference.abs(), "k2": difference.square() / 2}[kind]


@torch.no_grad()
def weighted_kl(log_ratio: Tensor, weights: Tensor) -> Tensor:
    """sum_t w_t (exp(d) - d - 1), d = new - old (N,): the k3 estimate of KL(old || new) in nats, shape ()."""
    bounded = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return ((bounded.exp() - 1.0 - bounded) * weights).sum()
