"""Whatever a recipe may name trains a step. Each run takes one name of every registry, so that all are taken once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import pytest

from palestra.tasks.task import TaskSet
from palestra.training.advantages import adjusters, estimators, reshapers
from palestra.training.batch import Aggregation
from palestra.training.layouts import layouts
from palestra.training.losses import corrections, losses
from palestra.training.losses.kl import Estimate
from palestra.training.optimizer import optimizers
from palestra.training.pace import paces
from palestra.training.proximal import proximals
from palestra.training.replay import replays
from palestra.training.samplers import samplers
from tiny_training import CONFIG, MakeTrainer, ignore, same, weights

CRITIC = "gae"
"""Refused before a run begins: tests/training/test_checks.py."""
OFF_POLICY = [name for name in proximals if name != "recorded"]
NAMES: dict[str, list[Any]] = {
    "estimator": [name for name in estimators if name != CRITIC],
    "loss": list(losses),
    "proximal": ["recorded", *OFF_POLICY, OFF_POLICY[0]],
    "correction": [None, *corrections],
    "sampler": list(samplers),
    "pace": list(paces),
    "replay": list(replays),
    "layout": list(layouts),
    "optimizer": list(optimizers),
    "aggregation": list(get_args(Aggregation)),
    "kl": list(get_args(Estimate)),
    "adjust": [(), *(({"name": name},) for name in adjusters)],
    "reshape": [(), *(({"name": name},) for name in reshapers)],
}
RUNS = [
    {key: names[number % len(names)] for key, names in NAMES.items()}
    for number in range(max(map(len, NAMES.values())))
]


def test_every_name_is_taken() -> None:
    assert len(proximals) == len(corrections), (
        "else they are not paired: no correction without another proximal"
    )
    for key, names in NAMES.items():
        assert [name for name in names if name not in [run[key] for run in RUNS]] == []


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run['estimator']}-{run['loss']}-{run['sampler']}")
async def test_a_step_of_it(
    make_trainer: MakeTrainer, parity_tasks: Callable[..., TaskSet], run: dict[str, Any]
) -> None:
    staleness = int(run["pace"] == "capacity")
    config = replace(CONFIG, steps=1 + staleness, staleness=staleness, kl_weight=0.01, **run)
    trainer = await make_trainer(config, tasks=parity_tasks(6, expert=True))
    before = weights(trainer)
    await trainer.train(ignore)
    for result in trainer.history:
        assert result.logprob_gap < 1e-4 and result.failed == 0
        assert math.isfinite(result.loss) and math.isfinite(result.grad_norm)
    assert same(weights(trainer), before) == (not any(r.grad_norm for r in trainer.history))
