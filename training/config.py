"""What a training run is, apart from policy and tasks: numbers, and names in registries.

| key | names | where |
| --- | --- | --- |
| estimator | how credit is computed | `training.advantages.estimators` |
| reshape | rewards changed before | `training.advantages.reshapers` |
| adjust | advantages changed after | `training.advantages.adjusters` |
| loss, correction | what an update minimises | `training.losses.losses`, `corrections` |
| proximal | near which policy it stays | `training.proximal.proximals` |
| sampler | what is played | `training.samplers.samplers` |
| pace | when the rollouts of the steps to come begin | `training.pace.paces` |
| layout | how samples lie before the model | `training.layouts.layouts` |
| optimizer | how weights follow the gradient | `training.optimizer.optimizers` |
| replay | which older rollouts are trained again | `training.replay.replays` |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from palestra.training.batch import Aggregation
from palestra.training.losses.kl import Estimate

Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """One training run. `training.checks.problems` says what does not fit."""

    steps: int = 50
    groups_per_step: int = 16
    group_size: int = 8
    sampler: str = "uniform"
    sampler_options: Options = field(default_factory=dict)
    horizon: Options | None = None
    """Turns that a rollout may take, in stages: {turns = [5, 10], steps_per_stage = 20}. Default: the task's budget."""
    staleness: int = 0
    """Versions that the policy of a rollout may be behind: so many steps are collected ahead, while updates run.
    Above 0, take a `proximal` and a `correction` that allow for it."""
    pace: str = "in_turn"
    pace_options: Options = field(default_factory=dict)
    replay: str = "none"
    replay_options: Options = field(default_factory=dict)

    reshape: tuple[Options, ...] = ()
    """Changes of the rewards, in order: {name = "gated", threshold = 0.5} and the like."""
    estimator: str = "gigpo"
    estimator_options: Options = field(default_factory=dict)
    adjust: tuple[Options, ...] = ()
    """Changes of the advantages, in order: {name = "duration_weighted"} and the like."""

    loss: str = "clipped"
    loss_options: Options = field(default_factory=dict)
    correction: str | None = None
    correction_options: Options = field(default_factory=dict)
    proximal: str = "recorded"
    proximal_options: Options = field(default_factory=dict)
    kl_weight: float = 0.0
    """Of the distance from the policy that the run began with."""
    kl: Estimate = "k2"
    entropy_weight: float = 0.0
    token_share: float = 1.0
    """Share of the tokens of each branch that is trained (D3S)."""
    scale_by_ess: bool = False
    """Make the step smaller where few stale sequences carry the gradient (VCPO)."""
    aggregation: Aggregation = "token-mean"
    horizon_tokens: int = 1024
    """What aggregation "token-sum" divides by, besides the number of rollouts."""

    updates_per_step: int = 1
    """Optimizer steps per training step, each on its share of the groups."""
    optimizer: str = "muon"
    matrix_lr: float = 5e-3
    """Of the matrices inside the blocks. With "adamw" and a large model, more like 1e-6 for both."""
    other_lr: float = 1e-3
    offload_optimizer: bool = False
    """Keep the optimizer's state in main memory between steps."""
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    max_reply_tokens: int = 64
    layout: str = "rows"
    token_budget: int = 16_384
    """Computed positions per micro-batch."""
    max_logprob_gap: float = 0.05
    """Nats. Largest accepted difference between a recorded and a recomputed log-probability."""
    seed: int = 0
    threads: int = 1
    """Torch threads of an update. More pay off for models of many millions of parameters on idle cores."""
