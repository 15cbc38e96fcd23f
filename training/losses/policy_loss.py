"""What a policy loss returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The loss to minimise and what a person wants to know about it (sums over the given tokens)."""

    loss: Tensor  # ()
    clipped: Tensor  # () weighted share of tokens whose ratio was clipped
    kl: Tensor  # () weighted k3 estimate of KL(old || new) in nats
