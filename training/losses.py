"""Losses: pure functions over tokens. Aggregation is explicit: every token brings its own weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ClippedLoss:
    """The loss to minimise and what a person wants to know about it (sums over the given tokens)."""

    loss: Tensor  # ()
    clipped: Tensor  # () weighted share of tokens whose ratio was clipped
    kl: Tensor  # () weighted k3 estimate of KL(old || new) in nats


def clipped_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = 3.0,
) -> ClippedLoss:
    """sum_t w_t * max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), r = exp(logprob - old logprob); inputs (N,).

    With `dual_clip` c, tokens with A < 0 are bounded by -A c (Ye et al. 2020, arXiv:1912.09729). Asymmetric bounds
    after DAPO (Yu et al. 2025, arXiv:2503.14476, section 3.1). The log ratio is clamped to +-20. The weights are the
    denominator: see `palestra.training.batch`. Gradients flow through `logprobs` alone.
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
    return ClippedLoss((loss * weights).sum(), clipped, kl)
