"""The clipped loss of PPO, with asymmetric bounds and a bound on what a bad token may cost."""

from __future__ import annotations

import torch
from torch import Tensor

from palestra.training.losses.policy_loss import PolicyLoss


def clipped_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 3.0,
) -> PolicyLoss:
    """sum_t w_t * max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), r = exp(logprob - old logprob); inputs (N,).

    With `dual_clip` c, tokens with A < 0 are bounded by -A c (Ye et al. 2020, arXiv:1912.09729). Asymmetric bounds
    after DAPO (Yu et al. 2025, arXiv:2503.14476, section 3.1). The log ratio is clamped to +-20. The weights are the
    denominator: see `palestra.training.losses.aggregation`. Gradients flow through `logprobs` alone.
    """
    log_ratio = (logprobs - old_logprobs).clamp(-20.0, 20.0)
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = torch.maximum(plain, bounded)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    with torch.no_grad():
        clipped = ((bounded > plain).to(loss.dtype) * weights).sum()
        kl = ((ratio - 1.0 - log_ratio) * weights).sum()
    return PolicyLoss((loss * weights).sum(), clipped, kl)
