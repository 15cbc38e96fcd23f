"""Importance correction: tokens that another policy sampled, weighed or left out.

`log_ratio` is log(policy to train / policy that sampled) of every token, shape (N,). Weights carry no gradient: they
change the measure, not the objective. Multiply the token weights of a loss by them, and by the mask.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from palestra.training.losses.kl import LOG_RATIO_BOUND
from palestra.training.losses.segments import dense, maxima, means, sums

Level = Literal["token", "sum", "mean", "max"]
Divergence = Literal["k1", "k2", "k3"]


@torch.no_grad()
def truncated_ratios(log_ratio: Tensor, *, cap: float = 2.0, normalise: bool = False) -> Tensor:
    """TIS: min(exp(log_ratio), cap) per token, shape (N,); with `normalise` divided by their mean.

    Biased, of low variance. Source: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy
    RL training"; code verl rollout_corr_helper.py compute_rollout_correction_weights, level token. DART caps at 1.
    """
    ratios = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp().clamp(max=cap)
    return ratios / ratios.mean() if normalise and len(ratios) else ratios


@torch.no_grad()
def sequence_ratios(
    log_ratio: Tensor, sequence: Tensor, *, cap: float = 2.0, normalise: bool = False
) -> Tensor:
    """min(exp(sum of log_ratio over the sequence), cap) for every token of a sequence, shape (N,).

    Unbiased but for the cap, of high variance. `normalise` divides by the mean over sequences. Source: as
    `truncated_ratios`, level sequence.
    """
    ids, size = dense(sequence)
    ratios = sums(log_ratio, ids, size).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp().clamp(max=cap)
    return (ratios / ratios.mean() if normalise and size else ratios)[ids]


@torch.no_grad()
def keep_mask(
    log_ratio: Tensor,
    sequence: Tensor,
    *,
    level: Level = "token",
    divergence: Divergence = "k1",
    upper: float,
    lower: float | None = None,
) -> Tensor:
    """Which tokens to keep, bool (N,): rejection of what the two policies disagree on. MIS is this with weights.

    Per token x = log_ratio (k1), x^2 / 2 (k2) or exp(x) - 1 - x (k3), taken as it is or as the sum, mean or max over
    the sequence, which then is kept or left out whole. k1 is bounded as a ratio, lower <= exp(x) <= upper, by
    default from 1 / upper; k2 and k3 by `upper` alone. Combine criteria with &. Source: verl rollout_corr_helper.py
    compute_rollout_rejection_mask.

    Departures: bounds are those of the ratio train / rollout, as verl documents them; its code bounds the inverse,
    so its "0.5_4.0" is 0.25 to 2 here.

    Raises ValueError for a bound that is not positive, a lower bound with k2 or k3, or the maximum of k1.
    """
    _check(level, divergence, upper, lower)
    x = log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    values = {"k1": x, "k2": x.square() / 2, "k3": x.exp() - 1.0 - x}[divergence]
    if level != "token":
        ids, size = dense(sequence)
        values = {"sum": sums, "mean": means, "max": maxima}[level](values, ids, size)[ids]
    if divergence == "k1":
        low = -math.log(upper) if lower is None else math.log(lower)
        return (values >= low) & (values <= math.log(upper))
    return values <= upper


def _check(level: Level, divergence: Divergence, upper: float, lower: float | None) -> None:
    if upper <= 0 or (lower is not None and lower <= 0):
        raise ValueError(f"bounds are positive, got lower={lower}, upper={upper}")
    if divergence != "k1" and lower is not None:
        raise ValueError(f"{divergence} is at least 0 and has no lower bound, got lower={lower}")
    if divergence == "k1" and level == "max":
        raise ValueError("the maximum of k1 says nothing of small ratios: use level 'max' with k2 or k3")
