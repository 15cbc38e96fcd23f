"""Optimizer state that waits in main memory changes no step, and is not where steps are taken in between."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from palestra.training.optimizer import Offloaded, Optimizer, optimizers
from palestra.training.policy import Policy


def steps(policy: Policy, optimizer: Optimizer, count: int, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        ids = torch.randint(0, 300, (2, 8), generator=generator)
        policy.model(input_ids=ids).logits.square().mean().backward()
        optimizer.step(0.5)


def made(model_dir: Path, name: str) -> tuple[Policy, Any]:
    policy = Policy.load(model_dir)
    return policy, optimizers[name](policy.model, matrix_lr=0.01, other_lr=0.01)


def same(a: Policy, b: Policy) -> bool:
    return all(torch.equal(v, b.weights()[n]) for n, v in a.weights().items())


@pytest.mark.parametrize("name", optimizers)
class TestOffloaded:
    def test_the_same_bits(self, model_dir: Path, name: str) -> None:
        (plain, inner), (other, wrapped) = made(model_dir, name), made(model_dir, name)
        offloaded = Offloaded(wrapped)
        steps(plain, inner, 3)
        steps(other, offloaded, 3)
        assert same(plain, other)
        assert all(part.state for part in inner.parts)
        assert not any(part.state for part in wrapped.parts), "nothing is held between steps"

    def test_either_continues_from_the_state_of_the_other(self, model_dir: Path, name: str) -> None:
        (plain, inner), (other, wrapped) = made(model_dir, name), made(model_dir, name)
        offloaded = Offloaded(wrapped)
        steps(plain, inner, 2)
        other.load_state(plain.state())
        offloaded.load_state_dict(copy.deepcopy(inner.state_dict()))
        inner.load_state_dict(copy.deepcopy(offloaded.state_dict()))
        steps(plain, inner, 2, seed=1)
        steps(other, offloaded, 2, seed=1)
        assert same(plain, other)
