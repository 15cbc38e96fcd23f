"""The proximal policy: the one near which an update stays, and whose log-probabilities losses call old.

recorded   the policy that sampled, as recorded: nothing is computed
step       the policy at the start of the training step: one forward pass more
ewma       an average of all policies so far (PPO-EWMA), where the old log-probabilities are lost or too near: one pass
loglinear  interpolated between the sampling and the current policy by their versions: nothing is computed
linear     the same with probabilities

Stale rollouts want any but the first, together with an importance correction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from palestra.training.layouts import MicroBatch
from palestra.training.losses import proximal_logprobs
from palestra.training.losses.decoupled import Approximation
from palestra.training.policy import Policy


class Proximal(Protocol):
    """A proximal policy over one training run."""

    def before(self, policy: Policy, rows: MicroBatch) -> Tensor | None:
        """Log-probabilities (N,) by a forward pass before the first update of a step; None where none is needed."""
        ...

    def approximate(self, logprobs: Tensor, rows: MicroBatch, version: int) -> Tensor:
        """Log-probabilities (N,) where `before` gave none, from the current ones; `version` is the step's policy."""
        ...

    def updated(self, policy: Policy) -> None:
        """An optimizer step was taken."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        ...


class Recorded:
    """The policy that sampled."""

    def before(self, policy: Policy, rows: MicroBatch) -> Tensor | None:
        return None

    def approximate(self, logprobs: Tensor, rows: MicroBatch, version: int) -> Tensor:
        return rows.logprobs

    def updated(self, policy: Policy) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class Approximated(Recorded):
    """Between the sampling and the current policy: `proximal_logprobs`."""

    def __init__(self, kind: Approximation) -> None:
        self._kind = kind

    def approximate(self, logprobs: Tensor, rows: MicroBatch, version: int) -> Tensor:
        return proximal_logprobs(logprobs.detach(), rows.logprobs, rows.versions, version + 1, self._kind)


class StepStart(Recorded):
    """The policy before the first update of the step."""

    def before(self, policy: Policy, rows: MicroBatch) -> Tensor | None:
        with torch.no_grad():
            return policy.logprobs(rows)[0]


class Averaged(Recorded):
    """PPO-EWMA: theta_prox = sum_k decay^k theta_(t-k) / sum_k decay^k over all optimizer steps so far.

    Nothing of the old policies need be kept but one copy of the weights; the average is `1 / (1 - decay)` updates
    old. Source: Hilton et al. 2022, arXiv:2110.00641, section 3.1.
    """

    def __init__(self, *, decay: float = 0.9) -> None:
        """Raises ValueError for a decay outside [0, 1)."""
        if not 0 <= decay < 1:
            raise ValueError(f"decay is at least 0 and below 1, got {decay}")
        self._decay, self._total = decay, 0.0
        self._weights: dict[str, Tensor] = {}

    def before(self, policy: Policy, rows: MicroBatch) -> Tensor | None:
        if not self._weights:
            self.updated(policy)
        with torch.no_grad(), swapped(policy, self._weights):
            return policy.logprobs(rows)[0]

    def updated(self, policy: Policy) -> None:
        now = policy.state()
        self._total = self._total * self._decay + 1.0
        if not self._weights:
            self._weights = {name: value.clone() for name, value in now.items()}
        for name, average in self._weights.items():
            average.lerp_(now[name].to(average.dtype), 1.0 / self._total)

    def state_dict(self) -> dict[str, Any]:
        return {"total": self._total, "weights": self._weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._total, self._weights = float(state["total"]), dict(state["weights"])


@contextmanager
def swapped(policy: Policy, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """`policy` computes with `weights` inside, and with its own, bit for bit, after."""
    own = {name: value.clone() for name, value in policy.state().items()}
    try:
        policy.load_state(weights)
        yield
    finally:
        policy.load_state(own)


def _loglinear() -> Proximal:
    """`proximal_logprobs` of kind loglinear: no forward pass."""
    return Approximated("loglinear")


def _linear() -> Proximal:
    """`proximal_logprobs` of kind linear: no forward pass."""
    return Approximated("linear")


proximals: Mapping[str, Callable[..., Proximal]] = {
    "recorded": Recorded,
    "step": StepStart,
    "ewma": Averaged,
    "loglinear": _loglinear,
    "linear": _linear,
}
"""Proximal policies by name."""
