"""The warm start learns what it is shown, the same way each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from palestra.training.errors import DivergedError
from palestra.training.policy import Policy
from palestra.training.warmstart import WarmStart, warm_start
from palestra.trajectories.sample import Sample

MakeSample = Callable[..., Sample]
CONFIG = WarmStart(steps=30, batch_size=4)


@pytest.fixture
def demonstrations(make_sample: MakeSample) -> list[Sample]:
    return [make_sample(f"r{i}", prompt=3, replies=[4, 2], seed=i) for i in range(6)]


def test_the_loss_falls(policy: Policy, demonstrations: list[Sample]) -> None:
    losses: list[float] = []
    last = warm_start(policy, demonstrations, CONFIG, lambda step, loss: losses.append(loss))
    assert len(losses) == 30 and losses[-1] == last
    assert last < 0.75 * losses[0]


def test_the_same_seed_gives_the_same_weights(model_dir: Path, demonstrations: list[Sample]) -> None:
    policies = [Policy.load(model_dir) for _ in range(3)]
    for policy, seed in zip(policies, (0, 0, 1), strict=True):
        warm_start(policy, demonstrations, WarmStart(steps=3, batch_size=2, seed=seed))
    first, again, other = ([w.clone() for w in p.weights().values()] for p in policies)
    assert all(map(torch.equal, first, again))
    assert not all(map(torch.equal, first, other))


def test_no_demonstrations(policy: Policy) -> None:
    with pytest.raises(ValueError, match="no demonstrations"):
        warm_start(policy, [], CONFIG)


def test_weights_that_are_not_finite(policy: Policy, demonstrations: list[Sample]) -> None:
    with torch.no_grad():
        next(policy.parameters()).fill_(float("nan"))
    with pytest.raises(DivergedError, match="take a lower learning rate"):
        warm_start(policy, demonstrations, CONFIG)
