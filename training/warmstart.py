"""The supervised warm start: maximise the likelihood of recorded demonstrations, sampled tokens only."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from palestra.training.batch import Batch, make_batch
from palestra.training.errors import DivergedError
from palestra.training.optimizer import MuonAdamW
from palestra.training.policy import Policy
from palestra.trajectories.sample import Sample


@dataclass(frozen=True, slots=True)
class WarmStart:
    """How long and how fast. The learning rate rises over 20 steps and falls to 0 over the last ones."""

    steps: int = 1000
    batch_size: int = 8
    """Demonstrations per step."""
    matrix_lr: float = 0.015
    other_lr: float = 4e-3
    cooldown: float = 0.3
    """Share of the steps."""
    seed: int = 0
    threads: int = 1
    """Torch threads. For a model this small a second one gains little, and much is lost where cores are busy."""


def warm_start(
    policy: Policy,
    demonstrations: Sequence[Sample],
    config: WarmStart,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Train `policy` on whole demonstrations, drawn with replacement; returns the last loss (nats per token).

    `on_step(step, loss)` is called after each step, from 1. Raises ValueError without demonstrations and
    DivergedError where loss or gradient are not finite.
    """
    if not demonstrations:
        raise ValueError("no demonstrations to start from")
    torch.set_num_threads(config.threads)
    optimizer = MuonAdamW(policy.model, matrix_lr=config.matrix_lr, other_lr=config.other_lr)
    rng = random.Random(config.seed)
    loss = float("nan")
    for step in range(config.steps):
        chosen = rng.choices(demonstrations, k=config.batch_size)
        loss = _step(policy, _batch(chosen))
        optimizer.step(_schedule(step, config))
        on_step(step + 1, loss)
    return loss


def _batch(samples: Sequence[Sample]) -> Batch:
    ones = {(s.rollout_id, int(seq)): 1.0 for s in samples for seq in set(s.calls.tolist())}
    return make_batch(samples, ones)


def _step(policy: Policy, batch: Batch) -> float:
    total = 0.0
    for rows in batch.micro_batches(token_budget=1 << 30):
        logprobs, _ = policy.logprobs(rows)
        loss = -(logprobs * rows.weights).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    norm = float(torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0))
    if not math.isfinite(norm):
        raise DivergedError(f"the loss is {total} and its gradient's norm {norm}: take a lower learning rate")
    return total


def _schedule(step: int, config: WarmStart) -> float:
    remaining = (config.steps - step) / max(1.0, config.steps * config.cooldown)
    return min(1.0, (step + 1) / 20, remaining)
