"""The rollouts of a training step, round by round until its sampler is content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from palestra.rollouts.runner import Job, Runner, RunSpec
from palestra.tasks.task import Task
from palestra.training.config import TrainConfig
from palestra.training.credit import needs_baseline
from palestra.training.errors import AllFailedError
from palestra.training.samplers import Allocator, Budget, Draw, Group, HorizonSchedule
from palestra.trajectories.model import Sampling, Trajectory
from palestra.trajectories.store import Store

RUN_ID, GREEDY_RUN_ID = "train", "greedy"
"""Of the rollouts in the store: those to train on, and those that only say what the likeliest tokens reach."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a step played."""

    trajectories: list[Trajectory]
    groups: list[Group]
    weights: dict[str, float]
    """By group id: those to train on, with a factor on their advantages."""
    baselines: dict[str, float] | None = None
    """By group id: score of a greedy rollout, where the estimator asks for one and it has a score."""


class Collector:
    """Plays what `sampler` proposes."""

    def __init__(self, config: TrainConfig, runner: Runner, store: Store, sampler: Allocator) -> None:
        """`runner` must commit to `store`."""
        self._config, self._runner, self._store, self._sampler = config, runner, store, sampler
        self._budget = Budget(config.groups_per_step, config.group_size)
        self._horizon = HorizonSchedule(**config.horizon) if config.horizon else None
        sampling = Sampling(config.temperature, max_tokens=config.max_reply_tokens)
        self._spec = RunSpec(RUN_ID, "train", config.seed, sampling)
        self._greedy_spec = RunSpec(GREEDY_RUN_ID, "eval", config.seed, replace(sampling, temperature=0.0))

    async def step(self, step: int) -> Collected:
        """The rollouts of step `step`, at least one of them with a reward.

        Where an earlier run left none with a reward, they are played anew under other names. Raises
        AllFailedError when that happens now.
        """
        before, repeat = self._sampler.state_dict(), 0
        while True:
            prefix = f"{step:06d}.{repeat}/" if repeat else f"{step:06d}/"
            known = set(self._store.ids())
            collected = await self._rounds(step, prefix)
            if any(t.rollout.reward is not None for t in collected.trajectories):
                return await self._with_baselines(step, prefix, collected)
            if any(t.rollout.rollout_id not in known for t in collected.trajectories):
                raise AllFailedError(step + 1, [t.rollout.failure for t in collected.trajectories])
            self._sampler.load_state_dict(before)
            repeat += 1

    async def _rounds(self, step: int, prefix: str) -> Collected:
        tasks: dict[str, Task] = {}
        played: dict[str, list[Trajectory]] = {}
        while draws := self._sampler.propose(self._budget, groups := _groups(tasks, played)):
            tasks |= {draw.group: draw.task for draw in draws}
            jobs = [job for d in draws for job in self._jobs(step, prefix, d, len(played.get(d.group, ())))]
            names = [draw.group for draw in draws for _ in range(draw.rollouts)]
            for name, trajectory in zip(names, await self._runner.run(jobs, self._spec), strict=True):
                played.setdefault(name, []).append(trajectory)
        weights = self._sampler.weights(self._budget, groups)
        return Collected(
            trajectories=[t for group in played.values() for t in group],
            groups=groups,
            weights={prefix + name: weight for name, weight in weights.items()},
        )

    async def _with_baselines(self, step: int, prefix: str, collected: Collected) -> Collected:
        """One greedy rollout more per group, where the estimator compares with it."""
        if not needs_baseline(self._config):
            return collected
        jobs = [job for g in collected.groups for job in self._jobs(step, prefix, Draw(g.task, g.name, 1), 0)]
        greedy = [t.rollout for t in await self._runner.run(jobs, self._greedy_spec)]
        return replace(collected, baselines={r.group_id: r.reward for r in greedy if r.reward is not None})

    def _jobs(self, step: int, prefix: str, draw: Draw, first: int) -> list[Job]:
        task = draw.task if self._horizon is None else _shortened(draw.task, self._horizon.at(step))
        return [Job(task, prefix + draw.group, first + k) for k in range(draw.rollouts)]


def _groups(tasks: Mapping[str, Task], played: Mapping[str, Sequence[Trajectory]]) -> list[Group]:
    return [
        Group(tasks[name], name, tuple(t.rollout.reward for t in trajectories))
        for name, trajectories in played.items()
    ]


def _shortened(task: Task, turns: int) -> Task:
    """`task` with at most `turns` turns."""
    budget = task.budget.model_copy(update={"turns": min(turns, task.budget.turns)})
    return task.model_copy(update={"budget": budget})
