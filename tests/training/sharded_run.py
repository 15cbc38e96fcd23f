"""What test_sharded.py starts under torchrun: a few updates, and what came of them."""

from __future__ import annotations

import contextlib
import copy
import sys
from pathlib import Path

import numpy as np
import torch

from palestra.training.batch import Batch, make_batch
from palestra.training.config import TrainConfig
from palestra.training.errors import DivergedError
from palestra.training.policy import Policy
from palestra.training.sharded import Team
from palestra.training.update import Updater
from palestra.trajectories.sample import Sample


def batch(count: int) -> Batch:
    """`count` samples of different lengths."""
    random = np.random.default_rng(0)
    samples = []
    for i in range(count):
        size = 12 + 3 * i
        mask = np.arange(size) >= 5 + i
        samples.append(
            Sample(
                rollout_id=f"r{i}",
                leaf=0,
                ids=random.integers(0, 300, size).astype(np.int32),
                loss_mask=mask,
                logprobs=np.where(mask, -5.0, 0.0).astype(np.float32),
                calls=np.where(mask, 0, -1).astype(np.int32),
                versions=np.where(mask, 0, -1).astype(np.int32),
            )
        )
    return make_batch(samples, {(f"r{i}", 0): (-1.0) ** i for i in range(count)})


def main(model: Path, out: Path, layout: str) -> None:
    """Three updates, a state saved and restored in the middle; the first process leads."""
    torch.set_num_threads(1)
    team = Team.from_environment()
    policy = Policy.load(model)
    policy.shard(team)
    config = TrainConfig(
        optimizer="adamw", matrix_lr=1e-3, max_logprob_gap=1e9, token_budget=64, layout=layout
    )
    updater = Updater(policy, config)
    if not team.leads:
        return team.follow(policy=policy, updater=updater)
    with team.leading():
        lead(policy, updater, model, out)


def lead(policy: Policy, updater: Updater, model: Path, out: Path) -> None:
    """What the first process does."""
    broken = batch(2)
    broken.logprobs[:] = np.nan
    with contextlib.suppress(DivergedError):
        updater.run([broken], 0)
    results = [updater.run([batch(5)], 0), updater.run([batch(3)], 0)]
    held = copy.deepcopy(updater.state_dict())
    policy.save(out.with_suffix(".saved"), tokenizer=model / "tokenizer.json")
    updater.run([batch(4)], 0)
    policy.load_weights(out.with_suffix(".saved"))
    updater.load_state_dict(held)
    results.append(updater.run([batch(4)], 0))
    torch.save({"results": results, "weights": policy.weights()}, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
