"""The training loop: roll out, give credit, update, publish, checkpoint; then again.

    trainer = Trainer(config, policy, engine, runner, sampler, run_dir, tokenizer)
    await trainer.train(on_step=print)

On-policy and synchronous: the rollouts of step n are sampled with the weights of version n, the update makes version
n + 1. Everything a step needs is either in the last checkpoint (weights, optimizer, random states, sampler) or in the
store (rollouts), so a run killed at any moment continues where it was: rollouts that were committed are not run again.

Before the first update of a step the trainer recomputes the log-probability of every trained token. It must be what
the engine recorded; beyond `max_logprob_gap` the step is refused, since its gradient would be of something else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from palestra.rollouts.runner import Runner, RunSpec, group_jobs
from palestra.training.advantages import estimators
from palestra.training.batch import Aggregation, Batch, make_batch
from palestra.training.checkpoint import Checkpoints
from palestra.training.errors import AllFailedError, CheckpointError, TrainingError
from palestra.training.optimizer import MuonAdamW
from palestra.training.policy import Policy
from palestra.training.samplers import Sampler
from palestra.training.table import decisions
from palestra.training.update import Updater
from palestra.trajectories.model import Sampling, Trajectory
from palestra.trajectories.sample import samples
from palestra.trajectories.store import Store

RUN_ID = "train"
"""Of the rollouts in the store."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """What a training run is, apart from policy and tasks."""

    steps: int = 50
    groups_per_step: int = 16
    group_size: int = 8
    estimator: str = "gigpo"
    """A name in `palestra.training.advantages.estimators`."""
    estimator_options: Mapping[str, Any] = field(default_factory=dict)
    aggregation: Aggregation = "token-mean"
    updates_per_step: int = 1
    """Optimizer steps per training step, each on its share of the groups."""
    matrix_lr: float = 5e-3
    other_lr: float = 1e-3
    clip_low: float = 0.2
    clip_high: float = 0.28
    max_grad_norm: float = 1.0
    temperature: float = 1.0
    max_reply_tokens: int = 64
    token_budget: int = 16_384
    """Positions per micro-batch, padding included."""
    max_logprob_gap: float = 0.05
    """Nats. Largest accepted difference between a recorded and a recomputed log-probability."""
    seed: int = 0
    threads: int = 1
    """Torch threads of an update. More pay off for models of many millions of parameters on idle cores."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a person wants to know of one training step."""

    step: int
    success: float
    """Share of scored rollouts with full reward."""
    reward: float
    rollouts: int
    failed: int
    informative: float
    """Share of decisions with a non-zero advantage."""
    turns: float
    invalid: float
    """Share of invalid actions."""
    loss: float
    entropy: float
    kl: float
    clipped: float
    grad_norm: float
    logprob_gap: float
    sampled_tokens: int
    rollout_s: float
    update_s: float


class TrainableEngine(Protocol):
    """An engine whose weights can be replaced while it serves."""

    async def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Serve `weights` from now on, as policy version `version`."""
        ...


class Trainer:
    """One run in one directory."""

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        engine: TrainableEngine,
        runner: Runner,
        store: Store,
        sampler: Sampler,
        run_dir: Path,
        tokenizer: Path,
    ) -> None:
        """`runner` must commit to `store`; `tokenizer` is the tokenizer.json that checkpoints carry along."""
        if config.estimator not in estimators:
            raise ValueError(f"no estimator {config.estimator!r}; there are {', '.join(estimators)}")
        self.config, self.policy, self.sampler = config, policy, sampler
        self.history: list[StepResult] = []
        self.runner = runner
        self._engine, self._store, self._tokenizer = engine, store, tokenizer
        self._optimizer = MuonAdamW(policy.model, matrix_lr=config.matrix_lr, other_lr=config.other_lr)
        self._updater = Updater(
            policy,
            self._optimizer,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            max_grad_norm=config.max_grad_norm,
            token_budget=config.token_budget,
            max_logprob_gap=config.max_logprob_gap,
            threads=config.threads,
        )
        self._checkpoints = Checkpoints(run_dir / "checkpoints")
        policy.temperature = config.temperature

    @property
    def step(self) -> int:
        """Number of finished steps, which is the policy version."""
        return len(self.history)

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint. Raises CheckpointError before the first one."""
        latest = self._checkpoints.latest()
        if latest is None:
            raise CheckpointError("there is no checkpoint yet: call train()")
        return latest

    def resume(self) -> bool:
        """Continue from the newest checkpoint; False if there is none. Raises CheckpointError."""
        latest = self._checkpoints.latest()
        if latest is None:
            return False
        state = self._checkpoints.load(latest, self.policy, self._optimizer)
        self.sampler.load_state_dict(state["sampler"])
        self.history = _history(state)
        return True

    async def train(self, on_step: Callable[[StepResult], Awaitable[None]]) -> None:
        """Run the remaining steps; `on_step` is awaited after each one's checkpoint.

        Begins at the newest checkpoint, so that it may be called again after any error. Raises TrainingError,
        StoreFullError, and what `on_step` raises.
        """
        if not self.resume():
            self._save()
        await self._engine.update_weights(self.policy.weights(), self.step)
        while self.step < self.config.steps:
            result = await self._step()
            self.history.append(result)
            self._save()
            await self._engine.update_weights(self.policy.weights(), self.step)
            await on_step(result)

    async def _step(self) -> StepResult:
        started = time.perf_counter()
        trajectories = await self._rollouts()
        rolled_out = time.perf_counter()
        rows = decisions(trajectories)
        advantages = estimators[self.config.estimator](rows.table, **self.config.estimator_options)
        credit = dict(zip(rows.keys, advantages.tolist(), strict=True))
        self._keep_advantages(trajectories, credit)
        batches = self._batches(trajectories, credit)
        update = await asyncio.to_thread(self._updater.run, batches)
        seconds = (rolled_out - started, time.perf_counter() - rolled_out)
        return self._result(trajectories, float(np.mean(advantages != 0)), update, seconds)

    async def _rollouts(self) -> list[Trajectory]:
        """The rollouts of this step, at least one of them with a reward.

        Where an earlier run left none with a reward, they are played anew under other names. Raises
        AllFailedError when that happens now.
        """
        tasks = self.sampler.propose(self.config.groups_per_step)
        sampling = Sampling(self.config.temperature, max_tokens=self.config.max_reply_tokens)
        spec = RunSpec(RUN_ID, "train", self.config.seed, sampling)
        repeat = 0
        while True:
            prefix = f"{self.step:06d}.{repeat}/" if repeat else f"{self.step:06d}/"
            jobs = group_jobs(tasks, self.config.group_size, prefix)
            stored = all(job.rollout_id(RUN_ID) in self._store for job in jobs)
            trajectories = await self.runner.run(jobs, spec)
            if any(t.rollout.reward is not None for t in trajectories):
                return trajectories
            if not stored:
                raise AllFailedError(self.step + 1, [t.rollout.failure for t in trajectories])
            repeat += 1

    def _keep_advantages(
        self, trajectories: Sequence[Trajectory], credit: Mapping[tuple[str, int], float]
    ) -> None:
        """Beside each rollout, one per environment step, so that a person can see what it was credited with."""
        meta = {"estimator": self.config.estimator, "version": self.step}
        for t in trajectories:
            values = [
                credit.get((t.rollout.rollout_id, s.call if s.call is not None else -1), 0.0) for s in t.steps
            ]
            self._store.append_overlay(t.rollout.rollout_id, "advantages", np.array(values, np.float32), meta)

    def _batches(
        self, trajectories: Sequence[Trajectory], advantages: Mapping[tuple[str, int], float]
    ) -> list[Batch]:
        """One batch per update, whole groups each; rollouts without a score carry no loss."""
        scored = [t for t in trajectories if t.rollout.reward is not None]
        groups = list(dict.fromkeys(t.rollout.group_id for t in scored))
        batches = []
        for part in range(self.config.updates_per_step):
            chosen = set(groups[part :: self.config.updates_per_step])
            views = [s for t in scored if t.rollout.group_id in chosen for s in samples(t)]
            if views:
                batches.append(make_batch(views, advantages, self.config.aggregation))
        if not batches:
            raise TrainingError(
                f"step {self.step + 1}: no rollout with a reward has a sampled token to train"
            )
        return batches

    def _result(
        self,
        trajectories: Sequence[Trajectory],
        informative: float,
        update: Mapping[str, float],
        seconds: tuple[float, float],
    ) -> StepResult:
        rewards = [r for t in trajectories if (r := t.rollout.reward) is not None]
        actions = [s.valid_action for t in trajectories for s in t.steps]
        return StepResult(
            step=self.step + 1,
            success=float(np.mean([r >= 1.0 for r in rewards])),
            reward=float(np.mean(rewards)),
            rollouts=len(trajectories),
            failed=len(trajectories) - len(rewards),
            informative=informative,
            turns=len(actions) / len(trajectories),
            invalid=1.0 - float(np.mean(actions)) if actions else 0.0,
            **update,
            sampled_tokens=sum(len(n.logprobs) for t in trajectories for n in t.nodes),
            rollout_s=seconds[0],
            update_s=seconds[1],
        )

    def _save(self) -> None:
        state = {"sampler": self.sampler.state_dict(), "history": [asdict(r) for r in self.history]}
        self._checkpoints.save(self.step, self.policy, self._optimizer, state, self._tokenizer)


def read_history(run_dir: Path) -> list[StepResult]:
    """What a run in `run_dir` did so far, from its newest checkpoint; empty where there is none."""
    latest = Checkpoints(run_dir / "checkpoints").latest()
    return _history(Checkpoints.read_state(latest)) if latest is not None else []


def _history(state: Mapping[str, Any]) -> list[StepResult]:
    try:
        return [StepResult(**row) for row in state["history"]]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"the checkpoint was written by another version of palestra: {error}"
        ) from error
