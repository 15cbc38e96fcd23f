"""What a loss sees of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """N trained tokens, flat; a sequence is one branch of a rollout and never split over micro-batches.

    Three policies: the one trained, whose log-probabilities a loss gets beside this; the proximal one, near which it
    stays; and the one that sampled, maybe versions ago.
    """

    sampled: Tensor  # (N,) log-probabilities recorded at sampling
    old: Tensor  # (N,) of the proximal policy
    advantages: Tensor  # (N,)
    weights: Tensor  # (N,) share of each token in the loss of the whole batch
    sequence: Tensor  # (N,) int64, tokens of one sequence in order
    reference: Tensor | None = None  # (N,) of the policy that a KL penalty pulls towards
