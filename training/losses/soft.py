"""CISPO and SAPO: losses that keep a gradient for every token, where clipping would drop it."""

from __future__ import annotations

import torch
from torch import Tensor

from palestra.training.losses.kl import LOG_RATIO_BOUND, weighted_kl
from palestra.training.losses.policy_loss import PolicyLoss


def cispo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
) -> PolicyLoss:
    """-sum_t w_t sg(clip(r, 1 - low, 1 + high)) A_t logprob_t, r = exp(logprob - old); inputs (N,).

    The ratio is a weight without a gradient: clipping bounds it and never silences a token. Source: MiniMax-M1 2025,
    arXiv:2506.13585; code verl core_algos.py compute_policy_loss_cispo. The defaults, ratios of 0 to 5, are ours.
    """
    log_ratio = (logprobs - old_logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio = log_ratio.detach().exp()
    bounded = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    clipped = ((bounded != ratio).to(weights.dtype) * weights).sum().detach()
    loss = -(bounded * advantages * logprobs * weights).sum()
    return PolicyLoss(loss, clipped, weighted_kl(log_ratio, weights))


def sapo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> PolicyLoss:
    """-sum_t w_t A_t 4 / tau sigmoid(tau (r - 1)), r = exp(logprob - old), tau by the sign of A; inputs (N,).

    A gate in place of a clip: the gradient is that of PPO at r = 1 and fades smoothly. Source: Gao et al. 2025,
    arXiv:2511.20347; code verl core_algos.py compute_policy_loss_sapo.
    """
    log_ratio = (logprobs - old_logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    tau = torch.where(advantages > 0, tau_positive, tau_negative)
    gate = torch.sigmoid(tau * (log_ratio.exp() - 1.0)) * 4.0 / tau
    loss = -(advantages * gate * weights).sum()
    return PolicyLoss(loss, torch.zeros_like(loss.detach()), weighted_kl(log_ratio, weights))
