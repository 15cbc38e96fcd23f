"""The plain policy gradient, and ratios of prefixes for it."""

from __future__ import annotations

import torch
from torch import Tensor

from palestra.training.losses.kl import weighted_kl
from palestra.training.losses.policy_loss import PolicyLoss


def policy_gradient_loss(logprobs: Tensor, advantages: Tensor, weights: Tensor) -> Tensor:
    """-sum_t w_t A_t logprob_t, shape (); inputs (N,).

    REINFORCE, and the loss of GPG (arXiv:2504.02546). Off-policy, multiply the weights by `truncated_ratios`,
    `sequence_ratios` or `minpro_ratios`.
    """
    return -(advantages * logprobs * weights).sum()


def reinforce_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, weights: Tensor) -> PolicyLoss:
    """`policy_gradient_loss` as a loss of the registry; `old_logprobs` (N,) are only told the distance from."""
    loss = policy_gradient_loss(logprobs, advantages, weights)
    return PolicyLoss(loss, torch.zeros_like(loss.detach()), weighted_kl(logprobs - old_logprobs, weights))


def minpro_loss(
    logprobs: Tensor, sampled_logprobs: Tensor, advantages: Tensor, weights: Tensor, sequence: Tensor
) -> PolicyLoss:
    """`policy_gradient_loss` with `minpro_ratios` of the policy trained to the one that sampled; experimental."""
    ratios = minpro_ratios(logprobs - sampled_logprobs, sequence)
    return reinforce_loss(logprobs, sampled_logprobs, advantages, weights * ratios)


def minpro_ratios(log_ratio: Tensor, sequence: Tensor) -> Tensor:
    """r_t * min(r_s, s < t) for tokens in order within each sequence, r_1 for the first; shape (N,), no gradient.

    experimental: MinPRO replaces the product of the ratios before a token, which over- or underflows, by a surrogate
    made of their minimum. Its abstract alone was at hand; this form is assumed.
    """
    ratios = log_ratio.detach().clamp(-20.0, 20.0).exp()
    result = torch.empty_like(ratios)
    for value in torch.unique(sequence):
        at = (sequence == value).nonzero().squeeze(1)
        before = torch.cummin(ratios[at], dim=0).values.roll(1)
        before[0] = 1.0
        result[at] = ratios[at] * before
    return result
