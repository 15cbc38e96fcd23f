"""How far the trainer's probabilities are from the engine's, on rollouts that were really recorded.

Both compute the same model, but with other kernels, precision and batching. Where they differ, a gradient is of
something else than what was sampled (`update.py` refuses it beyond `max_logprob_gap`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from palestra.training.batch import make_batch
from palestra.training.errors import TrainingError
from palestra.training.policy import Policy
from palestra.trajectories.model import FloatArray
from palestra.trajectories.sample import Sample


@dataclass(frozen=True, slots=True)
class Drift:
    """Over N sampled tokens: d = trainer's minus recorded log-probability, in nats."""

    tokens: int
    mean: float
    """Of |d|."""
    p99: float
    largest: float
    kl: float
    """Of the engine from the trainer: mean of exp(d) - 1 - d (k3, Schulman 2020)."""
    ess: float
    """Effective sample size over number of samples, with weights exp(sum of d over the sample): 1 without drift."""

    def advice(self) -> Iterator[str]:
        """What to switch on."""
        if self.largest < 1e-3:
            yield "none needed: engine and trainer agree; what is trained is what was sampled"
            return
        if self.mean > 0.02:
            yield (
                "these are other weights or another temperature than were sampled with, or raw log-probabilities: "
                "compare policy versions, start vLLM with --logprobs-mode processed_logprobs"
            )
        yield 'correct token by token: correction = "tis" (truncated importance sampling)'
        if self.p99 > 0.1:
            yield "compute both in one precision: serve and train in bfloat16, or both in float32"
        if self.ess < 0.9:
            yield 'leave out what differs most: correction = "mis", or smaller steps'
        if self.largest > 0.05:
            yield f"raise max_logprob_gap above {self.largest:.2g} only with a correction, or each step is refused"


def drift(
    policy: Policy, views: Sequence[Sample], *, token_budget: int = 16_384, layout: str = "rows"
) -> Drift:
    """Recompute the log-probability of every trained token of `views` with `policy`, at its temperature.

    Raises TrainingError where there is none.
    """
    if not any(view.loss_mask.any() for view in views):
        raise TrainingError(
            "there is no sampled token to compare: these rollouts hold none that would be trained"
        )
    ones = {(v.rollout_id, int(seq)): 1.0 for v in views for seq in np.unique(v.calls)}
    differences, owners = list[FloatArray](), list[FloatArray]()
    with torch.no_grad():
        for part in make_batch(views, ones).micro_batches(token_budget, layout):
            part = part.to(torch.device(policy.options.device))
            differences.append((policy.logprobs(part)[0] - part.logprobs).cpu().double().numpy())
            owners.append(part.sequence.cpu().numpy())
    return _summary(np.concatenate(differences), np.concatenate(owners))


def _summary(d: FloatArray, sample: FloatArray) -> Drift:
    size = np.abs(d)
    _, numbers = np.unique(sample, return_inverse=True)
    weights = np.exp(np.clip(np.bincount(numbers, d), -20.0, 20.0))
    return Drift(
        tokens=len(d),
        mean=float(size.mean()),
        p99=float(np.quantile(size, 0.99)),
        largest=float(size.max()),
        kl=float((np.expm1(d) - d).mean()),
        ess=float(weights.sum() ** 2 / (weights**2).sum() / len(weights)),
    )
