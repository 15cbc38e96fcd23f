"""Training runs of a few steps on a tiny model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import torch

from palestra.training.config import TrainConfig
from palestra.training.trainer import StepResult, Trainer

MakeTrainer = Callable[..., Awaitable[Trainer]]
CONFIG = TrainConfig(
    steps=2, groups_per_step=2, group_size=4, max_reply_tokens=6, max_logprob_gap=1e-4, threads=1, seed=1
)


async def ignore(result: StepResult) -> None:
    """For `train`."""


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.policy.weights().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)
