"""The update of one training step: check what was recorded, then one optimizer step per batch.

Before any weight moves, the log-probability of every trained token is computed again. It must be what the
engine recorded: a gradient through other probabilities would be the gradient of something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from palestra.training.batch import Batch, Rows
from palestra.training.errors import DivergedError, UnfaithfulError
from palestra.training.losses import clipped_loss
from palestra.training.optimizer import MuonAdamW
from palestra.training.policy import Policy


class Updater:
    """Improves `policy` with `optimizer`; the other arguments are those of `TrainConfig`."""

    def __init__(
        self,
        policy: Policy,
        optimizer: MuonAdamW,
        *,
        clip_low: float,
        clip_high: float,
        max_grad_norm: float,
        token_budget: int,
        max_logprob_gap: float,
        threads: int,
    ) -> None:
        self._policy, self._optimizer = policy, optimizer
        self._clip = {"clip_low": clip_low, "clip_high": clip_high}
        self._max_grad_norm, self._token_budget = max_grad_norm, token_budget
        self._max_gap, self._threads = max_logprob_gap, threads

    def run(self, batches: Sequence[Batch]) -> dict[str, float]:
        """One optimizer step per batch, at least one. Returns loss, entropy, kl, clipped, grad_norm as means over
        the batches, and logprob_gap, the largest over all tokens, in nats.

        Raises UnfaithfulError before any weight is changed, and DivergedError without using what is not finite.
        """
        torch.set_num_threads(self._threads)
        self._optimizer.zero_grad()
        gaps = [
            self._gap(batch) for batch in batches[1:]
        ]  # later on the weights are no longer the recorded ones
        updates = [self._optimize(batch, recorded=index == 0) for index, batch in enumerate(batches)]
        means = {name: float(np.mean([u[name] for u in updates])) for name in updates[0]}
        return means | {"logprob_gap": max([updates[0]["logprob_gap"], *gaps])}

    def _gap(self, batch: Batch) -> float:
        with torch.no_grad():
            return max(self._checked(self._policy.logprobs(rows)[0], rows) for rows in self._cut(batch))

    def _optimize(self, batch: Batch, recorded: bool) -> dict[str, float]:
        """One optimizer step; `recorded`: with the weights that the batch was sampled with."""
        sums = dict.fromkeys(("loss", "entropy", "kl", "clipped", "logprob_gap"), 0.0)
        for rows in self._cut(batch):
            logprobs, entropy = self._policy.logprobs(rows)
            if recorded:
                sums["logprob_gap"] = max(sums["logprob_gap"], self._checked(logprobs, rows))
            result = clipped_loss(logprobs, rows.logprobs, rows.advantages, rows.weights, **self._clip)
            result.loss.backward()  # type: ignore[no-untyped-call]
            sums["loss"] += float(result.loss.detach())
            sums["kl"] += float(result.kl)
            sums["clipped"] += float(result.clipped)
            sums["entropy"] += float((entropy * rows.weights).sum())
        return sums | {"grad_norm": self._step()}

    def _step(self) -> float:
        """Follow the gradients; returns their norm before it was clipped."""
        norm = float(torch.nn.utils.clip_grad_norm_(self._policy.parameters(), self._max_grad_norm))
        if not np.isfinite(norm):
            raise DivergedError(f"the gradient's norm is {norm}; nothing was updated with it")
        self._optimizer.step()
        return norm

    def _checked(self, logprobs: Tensor, rows: Rows) -> float:
        """Largest difference between `logprobs` and the recorded ones, in nats."""
        gap = float((logprobs.detach() - rows.logprobs).abs().max())
        if not np.isfinite(gap):
            raise DivergedError("the model gives log-probabilities that are not finite; nothing was updated")
        if gap > self._max_gap:
            raise UnfaithfulError(gap, self._max_gap)
        return gap

    def _cut(self, batch: Batch) -> Iterator[Rows]:
        return batch.micro_batches(self._token_budget)
