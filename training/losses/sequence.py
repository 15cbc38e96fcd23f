"""GSPO and GMPO: losses whose ratio is that of a whole sequence, as the geometric mean over its tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from palestra.training.losses.kl import weighted_kl
from palestra.training.losses.policy_loss import PolicyLoss
from palestra.training.losses.segments import dense, means, sums


def gspo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    sequence: Tensor,
    *,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> PolicyLoss:
    """sum_t w_t max(-A_t s, -A_t clip(s, 1 - low, 1 + high)), s = exp(mean over the sequence of logprob - old).

    Inputs (N,). The gradient of s is shared out so that every token has that of s_t = sg(s) * p_t / sg(p_t). Meant
    for weights of aggregation "seq-mean-token-mean". Source: Zheng et al. 2025, arXiv:2507.18071;
    code verl core_algos.py compute_policy_loss_gspo, whose default clip of 0.2 hardly ever binds on a mean.
    """
    log_ratio = logprobs - old_logprobs
    ids, size = dense(sequence)
    mean = means(log_ratio.detach(), ids, size)[ids]
    ratio = (logprobs - logprobs.detach() + mean).clamp(max=10.0).exp()
    plain, bounded = -advantages * ratio, -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    with torch.no_grad():
        clipped = ((bounded > plain).to(weights.dtype) * weights).sum()
    return PolicyLoss(
        (torch.maximum(plain, bounded) * weights).sum(), clipped, weighted_kl(log_ratio, weights)
    )


def gmpo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    sequence: Tensor,
    *,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> PolicyLoss:
    """-sum_i W_i mean_t(A) exp(mean_t d), d = logprob - old, clipped to [-low, high] where that bounds the gain.

    Inputs (N,), i the sequences, W_i the summed weights of its tokens. Source: Zhao et al. 2025, arXiv:2507.20673;
    code verl core_algos.py compute_policy_loss_geo_mean, which averages over all rows, empty ones
    included: give `token_weights` their number as `sequences` for the same.
    """
    log_ratio = logprobs - old_logprobs
    sign = advantages.sign()
    bounded = sign * torch.minimum(sign * log_ratio, sign * log_ratio.clamp(-clip_low, clip_high))
    ids, size = dense(sequence)
    ratio, advantage = means(bounded, ids, size).exp(), means(advantages, ids, size)
    with torch.no_grad():
        clipped = ((bounded != log_ratio).to(weights.dtype) * weights).sum()
    loss = -(advantage * ratio * sums(weights, ids, size)).sum()
    return PolicyLoss(loss, clipped, weighted_kl(log_ratio, weights))
