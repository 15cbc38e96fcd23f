"""Losses: pure functions over tokens. Aggregation is explicit: every token brings its own weight.

    weights = token_weights(sequence, "token-mean", tokens=tokens_of_the_whole_batch)
    weights = weights * truncated_ratios(logprobs - sampled_logprobs)
    clipped_loss(logprobs, old_logprobs, advantages, weights).loss.backward()

In a training run they are picked by name: `losses`, `corrections`, and `Objective` that puts them together.

All inputs are flat, shape (N,), one entry per trained token; `sequence` (N,) numbers the sequences for the losses
that need them. What a loss divides by is in the weights, so the sum over any cut into micro-batches or ranks is the
loss of the whole. Importance corrections multiply the weights.
"""

from palestra.training.losses.aggregation import Aggregation, token_weights
from palestra.training.losses.clipped import clipped_loss
from palestra.training.losses.decoupled import decoupled_loss, proximal_logprobs
from palestra.training.losses.importance import keep_mask, sequence_ratios, truncated_ratios
from palestra.training.losses.kl import kl_estimate
from palestra.training.losses.objective import Correction, Loss, Objective, corrections, losses
from palestra.training.losses.policy_gradient import (
    minpro_loss,
    minpro_ratios,
    policy_gradient_loss,
    reinforce_loss,
)
from palestra.training.losses.policy_loss import PolicyLoss
from palestra.training.losses.selection import informative_tokens
from palestra.training.losses.sequence import gmpo_loss, gspo_loss
from palestra.training.losses.soft import cispo_loss, sapo_loss
from palestra.training.losses.tokens import Tokens
from palestra.training.losses.vcpo import effective_sample_size, learning_rate_scale, off_policy_baseline

__all__ = [
    "Aggregation",
    "Correction",
    "Loss",
    "Objective",
    "PolicyLoss",
    "Tokens",
    "cispo_loss",
    "clipped_loss",
    "corrections",
    "decoupled_loss",
    "effective_sample_size",
    "gmpo_loss",
    "gspo_loss",
    "informative_tokens",
    "keep_mask",
    "kl_estimate",
    "learning_rate_scale",
    "losses",
    "minpro_loss",
    "minpro_ratios",
    "off_policy_baseline",
    "policy_gradient_loss",
    "proximal_logprobs",
    "reinforce_loss",
    "sapo_loss",
    "sequence_ratios",
    "token_weights",
    "truncated_ratios",
]
