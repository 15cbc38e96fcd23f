"""The objective of an update, put together by name: a loss, an importance correction, a penalty, a bonus.

    objective = Objective("gspo", correction="tis", kl_weight=0.01)
    objective(logprobs, entropy, tokens).loss.backward()

A sum over tokens whose denominator is in their weights: over any cut into micro-batches or ranks the losses and the
gradients add up to those of the whole.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from palestra.training.losses.clipped import clipped_loss
from palestra.training.losses.decoupled import decoupled_loss
from palestra.training.losses.importance import (
    Divergence,
    Level,
    keep_mask,
    sequence_ratios,
    truncated_ratios,
)
from palestra.training.losses.kl import Estimate, kl_estimate
from palestra.training.losses.policy_gradient import minpro_loss, reinforce_loss
from palestra.training.losses.policy_loss import PolicyLoss
from palestra.training.losses.selection import informative_tokens
from palestra.training.losses.sequence import gmpo_loss, gspo_loss
from palestra.training.losses.soft import cispo_loss, sapo_loss
from palestra.training.losses.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss of the registry: its function, and which columns of `Tokens` follow the log-probabilities."""

    function: Callable[..., PolicyLoss]
    inputs: tuple[str, ...] = ("old", "advantages", "weights")

    def __call__(self, logprobs: Tensor, tokens: Tokens, **options: Any) -> PolicyLoss:
        """The loss of `logprobs` (N,)."""
        return self.function(logprobs, *(getattr(tokens, name) for name in self.inputs), **options)

    @property
    def options(self) -> list[str]:
        """Names of what `options` may hold."""
        return keyword_names(self.function)


losses: Mapping[str, Loss] = {
    "clipped": Loss(clipped_loss),
    "gspo": Loss(gspo_loss, ("old", "advantages", "weights", "sequence")),
    "gmpo": Loss(gmpo_loss, ("old", "advantages", "weights", "sequence")),
    "cispo": Loss(cispo_loss),
    "sapo": Loss(sapo_loss),
    "decoupled": Loss(decoupled_loss, ("old", "sampled", "advantages", "weights")),
    "reinforce": Loss(reinforce_loss),
    "minpro": Loss(minpro_loss, ("sampled", "advantages", "weights", "sequence")),
}
"""Losses by name."""

Correction = Callable[..., Tensor]


def tis(log_ratio: Tensor, sequence: Tensor, *, cap: float = 2.0) -> Tensor:
    """Truncated importance sampling, token by token: `truncated_ratios`."""
    return truncated_ratios(log_ratio, cap=cap)


def sequence_tis(log_ratio: Tensor, sequence: Tensor, *, cap: float = 2.0) -> Tensor:
    """The same with the ratio of whole sequences: `sequence_ratios`."""
    return sequence_ratios(log_ratio, sequence, cap=cap)


def mis(
    log_ratio: Tensor, sequence: Tensor, *, upper: float = 2.0, lower: float | None = None, cap: float = 2.0
) -> Tensor:
    """Masked importance sampling: `truncated_ratios` of the tokens that `keep_mask` keeps."""
    return keep_mask(log_ratio, sequence, upper=upper, lower=lower) * truncated_ratios(log_ratio, cap=cap)


def sequence_mis(
    log_ratio: Tensor, sequence: Tensor, *, upper: float = 2.0, lower: float | None = None, cap: float = 2.0
) -> Tensor:
    """The same with the ratio of whole sequences, which are kept or left out whole."""
    kept = keep_mask(log_ratio, sequence, level="sum", upper=upper, lower=lower)
    return kept * sequence_ratios(log_ratio, sequence, cap=cap)


def rejection(
    log_ratio: Tensor,
    sequence: Tensor,
    *,
    level: Level = "token",
    divergence: Divergence = "k1",
    upper: float = 2.0,
    lower: float | None = None,
) -> Tensor:
    """`keep_mask`: what is kept keeps its weight."""
    return keep_mask(log_ratio, sequence, level=level, divergence=divergence, upper=upper, lower=lower)


corrections: Mapping[str, Correction] = {
    "tis": tis,
    "sequence-tis": sequence_tis,
    "mis": mis,
    "sequence-mis": sequence_mis,
    "rejection": rejection,
}
"""Importance corrections by name: (log ratio of proximal to sampling policy (N,), sequence (N,)) to factors (N,)."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What one update minimises, with everything in it named."""

    loss: str = "clipped"
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    correction: str | None = None
    correction_options: Mapping[str, Any] = field(default_factory=dict)
    kl_weight: float = 0.0
    kl: Estimate = "k2"
    entropy_weight: float = 0.0
    token_share: float = 1.0
    """Share of the tokens of each sequence that is trained, those with the largest |advantage| * entropy first."""

    def __call__(self, logprobs: Tensor, entropy: Tensor, tokens: Tokens) -> PolicyLoss:
        """The loss of `logprobs` (N,) with their `entropy` (N,), and what is told of it."""
        tokens = replace(tokens, weights=self._weights(entropy.detach(), tokens))
        result = losses[self.loss](logprobs, tokens, **self.loss_options)
        return replace(result, loss=result.loss + self._regularisers(logprobs, entropy, tokens))

    def _weights(self, entropy: Tensor, tokens: Tokens) -> Tensor:
        weights = tokens.weights
        if self.correction is not None:
            correct = partial(corrections[self.correction], **self.correction_options)
            weights = weights * correct(tokens.old - tokens.sampled, tokens.sequence)
        if self.token_share < 1:
            weights = weights * informative_tokens(
                tokens.advantages, entropy, tokens.sequence, share=self.token_share
            )
        return weights

    def _regularisers(self, logprobs: Tensor, entropy: Tensor, tokens: Tokens) -> Tensor:
        total = torch.zeros((), device=logprobs.device)
        if self.kl_weight:
            assert tokens.reference is not None
            distance = kl_estimate(logprobs, tokens.reference, self.kl)
            total = total + self.kl_weight * (distance * tokens.weights).sum()
        if self.entropy_weight:
            total = total - self.entropy_weight * (entropy * tokens.weights).sum()
        return total


def keyword_names(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters that must be given by name."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
