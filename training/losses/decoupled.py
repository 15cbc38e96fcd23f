"""Decoupled PPO: clip against a proximal policy, correct for the one that sampled.

Three policies: the one trained, the proximal one near which it stays, and the behaviour policy that sampled, maybe
many versions ago. The proximal log-probabilities cost a forward pass, or are approximated from the other two.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from palestra.training.losses.clipped import clipped_loss
from palestra.training.losses.policy_loss import PolicyLoss

Approximation = Literal["loglinear", "linear", "rollout"]


def decoupled_loss(
    logprobs: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float | None = None,
    cap: float | None = 5.0,
) -> PolicyLoss:
    """sum_t w_t min(b, cap) max(-A u, -A clip(u, 1 - low, 1 + high)), u = p / p_prox, b = p_prox / p_behaviour.

    All log-probabilities and advantages (N,). `cap` None leaves b as it is. To reject tokens instead, multiply the
    weights by `keep_mask(proximal - behaviour, ...)`: the denominator stays that of all tokens. Source: Hilton et
    al. 2022, arXiv:2110.00641; Fu et al. 2025 (AReaL), arXiv:2505.24298; code areal/utils/functional
    ppo_actor_loss_fn.
    """
    with torch.no_grad():
        correction = (proximal - behaviour).exp()
        correction = correction if cap is None else correction.clamp(max=cap)
    return clipped_loss(
        logprobs,
        proximal,
        advantages,
        weights * correction,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
    )


@torch.no_grad()
def proximal_logprobs(
    logprobs: Tensor,
    behaviour: Tensor,
    versions: Tensor,
    current_version: int,
    kind: Approximation = "loglinear",
) -> Tensor:
    """Log-probabilities under the policy of version `current_version` - 1, approximated; shape (N,).

    a = (current - 1 - v) / (current - v), v the version that sampled the token: how far the proximal policy is on the
    way from it to the current one. loglinear interpolates log-probabilities, linear probabilities, rollout takes
    the behaviour policy's. Tokens of version < 0 (not sampled) keep `behaviour`. Source: AReaL
    areal/trainer/ppo/actor.py compute_prox_logp_approximations.

    Raises ValueError for an unknown kind.
    """
    if kind not in get_args(Approximation):
        raise ValueError(f"an approximation is one of {', '.join(get_args(Approximation))}, got {kind!r}")
    age = (current_version - versions).to(logprobs.dtype)
    share = torch.where((age > 0) & (versions >= 0), (age - 1.0) / age.clamp(min=1.0), 0.0).clamp(0.0, 1.0)
    if kind == "linear":
        return ((1.0 - share) * behaviour.exp() + share * logprobs.exp()).log()
    return behaviour + (share * (logprobs - behaviour) if kind == "loglinear" else 0.0)
