"""The training loop: roll out, give credit, update, publish, checkpoint; then again.

    trainer = Trainer(config, policy, engine, runner, store, tasks, run_dir, tokenizer)
    await trainer.train(on_step=print)

The rollouts of step n are sampled with the weights of version n, the update makes version n + 1. With `staleness` k
they may be sampled with versions from n - k on, and are collected while the steps before are computed (`ahead.py`).
What is played, how credit is computed, what is minimised and what is trained again are named in the config.
Everything a step needs is either in the last checkpoint (weights, optimizer, random states, sampler, replay buffer) or
in the store (rollouts), so a run killed at any moment continues where it was: rollouts that were committed are not run
again.

Before the first update of a step the trainer recomputes the log-probability of every trained token of its policy. It
must be what the engine recorded; beyond `max_logprob_gap` the step is refused, since its gradient would be of
something else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from palestra.rollouts.runner import Runner
from palestra.tasks.task import TaskSet
from palestra.training.ahead import Ahead
from palestra.training.batch import Batch, make_batch
from palestra.training.checkpoint import Checkpoints
from palestra.training.checks import check
from palestra.training.collect import Collected, Collector
from palestra.training.config import TrainConfig
from palestra.training.credit import Credit, give_credit
from palestra.training.engine import TrainableEngine
from palestra.training.errors import CheckpointError, TrainingError, VersionError
from palestra.training.pace import paces
from palestra.training.policy import Policy
from palestra.training.replay import Entry, replays
from palestra.training.samplers import samplers
from palestra.training.update import Updater
from palestra.trajectories.model import Trajectory
from palestra.trajectories.sample import samples
from palestra.trajectories.store import Store


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
    token_budget: int
    """Computed positions per micro-batch, as many as memory was enough for."""
    sampled_tokens: int
    rollout_s: float
    update_s: float


class Trainer:
    """One run in one directory."""

    def __init__(
        self,
        config: TrainConfig,
        policy: Policy,
        engine: TrainableEngine,
        runner: Runner,
        store: Store,
        tasks: TaskSet,
        run_dir: Path,
        tokenizer: Path,
        rest: Callable[[], Awaitable[None]] | None = None,
        published: Callable[[], Mapping[str, Tensor]] | None = None,
    ) -> None:
        """`runner` must commit to `store`; `tokenizer` is the tokenizer.json that checkpoints carry along.

        `rest`: called before each update, to have an engine on the same accelerator give its memory back; new weights
        wake it. `published`: what the engine is given as new weights, by default those of the policy.

        Raises ConfigError, a ValueError, for a name or a value that `config` cannot have.
        """
        check(config)
        self.config, self.policy, self.runner = config, policy, runner
        self.history: list[StepResult] = []
        self._engine, self._store, self._tokenizer, self._rest = engine, store, tokenizer, rest
        self._published = published or policy.weights
        self.sampler = samplers[config.sampler](tasks, config.seed, **config.sampler_options)
        collector = Collector(config, runner, store, self.sampler)
        batch = config.groups_per_step * config.group_size
        self._ahead = Ahead(
            collector,
            self.sampler,
            tasks,
            staleness=config.staleness,
            steps=config.steps,
            pace=paces[config.pace](config.staleness, batch, **config.pace_options),
        )
        self._replay = replays[config.replay](config.seed, **config.replay_options)
        self._updater = Updater(policy, config)
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
        state = self._checkpoints.load(latest, self.policy, self._updater)
        with _of_this_version():
            self._ahead.load_state_dict(state["collected"], state["step"])
            self._replay.load_state_dict(state["replay"])
        self.history = _history(state)
        return True

    async def train(self, on_step: Callable[[StepResult], Awaitable[None]]) -> None:
        """Run the remaining steps; `on_step` is awaited after each one's checkpoint.

        Begins at the newest checkpoint, so that it may be called again after any error. Raises TrainingError,
        StoreFullError, and what `on_step` raises.
        """
        if not self.resume():
            self._save()
        try:
            await self._publish()
            while self.step < self.config.steps:
                result = await self._step()
                self.history.append(result)
                self._save()
                await self._publish()
                await on_step(result)
        finally:
            await self._ahead.aclose()

    async def _publish(self) -> None:
        await self._engine.update_weights(self._published(), self.step)
        self._ahead.published(self.step)

    async def _step(self) -> StepResult:
        started = time.perf_counter()
        collected = await self._ahead.take(self.step)
        rolled_out = time.perf_counter()
        self._check_versions(collected.trajectories)
        if self._rest is not None:
            await self._rest()
        credit = await self._credit(collected)
        self._keep_advantages(collected.trajectories, credit.by_call())
        batches = self._batches(self._chosen(collected, credit))
        update = await asyncio.to_thread(self._updater.run, batches, self.step)
        self._ahead.trained(self.step, collected.groups)
        seconds = (rolled_out - started, time.perf_counter() - rolled_out)
        return self._result(collected.trajectories, credit.informative, update, seconds)

    async def _credit(self, collected: Collected) -> Credit:
        log_ratios = await asyncio.to_thread(self._updater.log_ratios, collected.trajectories)
        return give_credit(collected.trajectories, self.config, collected.baselines, log_ratios)

    def _check_versions(self, trajectories: Sequence[Trajectory]) -> None:
        """Raises VersionError for a rollout of weights that this step may not train on."""
        allowed = max(self.step - self.config.staleness, 0), self.step
        for rollout in (t.rollout for t in trajectories):
            if (own := rollout.policy_versions) and not (allowed[0] <= own[0] and own[1] <= allowed[1]):
                raise VersionError(rollout.rollout_id, own, allowed)

    def _chosen(self, collected: Collected, credit: Credit) -> list[tuple[Trajectory, Entry]]:
        """What to train on: valid rollouts of this step's groups, and those that are replayed."""
        fresh = {t.rollout.rollout_id: t for t in collected.trajectories}
        entries = credit.entries(collected.trajectories, collected.weights)
        mixed = self._replay.mix(entries, self.step)
        return [(fresh.get(e.rollout_id) or self._store.get(e.rollout_id), e) for e in mixed]

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

    def _batches(self, chosen: Sequence[tuple[Trajectory, Entry]]) -> list[Batch]:
        """One batch per update, whole groups each."""
        credit = {(e.rollout_id, int(seq)): a for _, e in chosen for seq, a in e.credit.items()}
        groups = list(dict.fromkeys(e.group_id for _, e in chosen))
        batches = []
        for part in range(self.config.updates_per_step):
            mine = set(groups[part :: self.config.updates_per_step])
            views = [s for t, e in chosen if e.group_id in mine for s in samples(t)]
            if views:
                batches.append(make_batch(views, credit, self.config.aggregation, self.config.horizon_tokens))
        if not batches:
            raise TrainingError(
                f"step {self.step + 1}: no rollout with a reward has a sampled token to train"
            )
        return batches

    def _result(
        self,
        trajectories: Sequence[Trajectory],
        informative: float,
        update: Mapping[str, Any],
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
        state = {
            "collected": self._ahead.state_dict(),
            "replay": self._replay.state_dict(),
            "history": [asdict(r) for r in self.history],
        }
        self._checkpoints.save(self.step, self.policy, self._updater, state, self._tokenizer)


def read_history(run_dir: Path) -> list[StepResult]:
    """What a run in `run_dir` did so far, from its newest checkpoint; empty where there is none."""
    latest = Checkpoints(run_dir / "checkpoints").latest()
    return _history(Checkpoints.read_state(latest)) if latest is not None else []


def _history(state: Mapping[str, Any]) -> list[StepResult]:
    with _of_this_version():
        return [StepResult(**row) for row in state["history"]]


@contextmanager
def _of_this_version() -> Iterator[None]:
    """Raises CheckpointError where a state does not have what is looked for."""
    try:
        yield
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"the checkpoint was written by another version of palestra: {error}"
        ) from error
