"""The runner: many attempts at many tasks, at once, each recorded whole or not at all.

    runner = Runner(proxy, ToolLoop(), store=store)
    trajectories = await runner.run(jobs, RunSpec(run_id="r1", mode="train", seed=0))

Each job is one attempt: a fresh environment, a fresh proxy session, one harness run, one score, one record in the
store. What breaks is attributed to a boundary; failures of infrastructure are tried again. A job whose rollout is in
the store already is not run again, so an interrupted run continues where it was.

A spent turn or token budget ends an episode as truncated and it is graded as it stands. A spent wall clock is a
failure at boundary budget and has no reward: how long an attempt takes depends on the machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import cast

import gymnasium

from palestra.envs import register_envs
from palestra.envs.env import TaskEnv
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.sessions import Recording, Session
from palestra.rollouts.errors import RolloutError, boundary
from palestra.rollouts.harnesses.base import Endpoint, Harness
from palestra.rollouts.world import World
from palestra.tasks.task import Task
from palestra.trajectories.model import Failure, Mode, Rollout, Sampling, Score, Trajectory
from palestra.trajectories.store import Store


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt to be made. Jobs with one `group_id` are attempts at the same task under the same policy."""

    task: Task
    group_id: str
    sample_index: int = 0


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What all attempts of a run share."""

    run_id: str
    mode: Mode = "train"
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    attempts: int = 3
    """Tries per job when infrastructure fails."""


def group_jobs(tasks: Sequence[Task], size: int, prefix: str = "") -> list[Job]:
    """`size` attempts at each task, as one group per task; `prefix` sets groups of one task apart."""
    return [Job(task, f"{prefix}{task.id}", k) for task in tasks for k in range(size)]


class Runner:
    """Runs jobs over one proxy with one harness."""

    def __init__(
        self, proxy: Proxy, harness: Harness, *, store: Store | None = None, concurrency: int = 128
    ) -> None:
        """`store`: where rollouts are committed, None to keep them in memory. `concurrency`: attempts at once."""
        register_envs()
        self._proxy, self._harness, self._store = proxy, harness, store
        self._slots = asyncio.Semaphore(concurrency)
        self._envs: dict[str, list[TaskEnv]] = defaultdict(list)
        self._executor = ThreadPoolExecutor((os.cpu_count() or 1) + 2, thread_name_prefix="env")

    async def run(
        self, jobs: Sequence[Job], spec: RunSpec, on_done: Callable[[Rollout], None] | None = None
    ) -> list[Trajectory]:
        """Run `jobs` and return their trajectories in the order of the jobs, failed ones included.

        `on_done` is called after each commit. Raises StoreFullError when records cannot be kept; what was committed
        stays, and the same call continues later.
        """
        async with asyncio.TaskGroup() as group:
            pending = [group.create_task(self._job(job, spec, on_done)) for job in jobs]
        return [task.result() for task in pending]

    async def aclose(self) -> None:
        """Close environments, threads and the harness. Calling it twice is fine."""
        await self._harness.aclose()
        for env in (env for envs in self._envs.values() for env in envs):
            env.close()
        self._envs.clear()
        self._executor.shutdown(wait=False)

    async def _job(self, job: Job, spec: RunSpec, on_done: Callable[[Rollout], None] | None) -> Trajectory:
        rollout_id = f"{spec.run_id}/{job.group_id}/{job.sample_index}"
        if self._store is not None and rollout_id in self._store:
            trajectory = self._store.get(rollout_id)
        else:
            async with self._slots:
                trajectory = await self._attempts(job, spec, rollout_id)
            if self._store is not None:
                self._store.append(trajectory)
        if on_done is not None:
            on_done(trajectory.rollout)
        return trajectory

    async def _attempts(self, job: Job, spec: RunSpec, rollout_id: str) -> Trajectory:
        findings: tuple[str, ...] = ()
        for attempt in range(1, spec.attempts + 1):
            trajectory = await _Attempt(self, job, spec, rollout_id, attempt).run()
            failure = trajectory.rollout.failure
            if failure is None or not failure.retryable or attempt == spec.attempts:
                break
            findings += (
                f"attempt {attempt} failed at {failure.boundary} in {failure.stage}: {failure.message}",
            )
        rollout = replace(trajectory.rollout, findings=findings + trajectory.rollout.findings)
        return replace(trajectory, rollout=rollout)

    def _acquire(self, env_id: str) -> TaskEnv:
        if self._envs[env_id]:
            return self._envs[env_id].pop()
        return cast(TaskEnv, gymnasium.make(env_id).unwrapped)


class _Attempt:
    """One attempt at one job."""

    def __init__(self, runner: Runner, job: Job, spec: RunSpec, rollout_id: str, attempt: int) -> None:
        self._runner, self._job, self._spec = runner, job, spec
        self._rollout_id, self._attempt = rollout_id, attempt
        self._seed = seed_of(spec.seed, rollout_id)
        self._timings: dict[str, float] = {}

    async def run(self) -> Trajectory:
        """Play, score, and close the session, whatever happens."""
        started = time.perf_counter()
        task = self._job.task
        session = self._open()
        world: World | None = None
        score: Score | None = None
        failure: Failure | None = None
        env: TaskEnv | None = None
        try:
            with boundary("env", "setup"):
                env = self._runner._acquire(task.env)
            world = World(env, task, self._seed, self._runner._executor)
            score = await self._play(world, session)
        except RolloutError as error:
            failure = error.failure
        finally:
            recording = self._runner._proxy.close(session)
        if env is not None and failure is None:
            self._runner._envs[task.env].append(env)
        failure = recording.failure or failure
        self._timings["total"] = time.perf_counter() - started
        return self._trajectory(world, recording, score, failure)

    def _endpoint(self, session: Session) -> Endpoint:
        return Endpoint(session.base_url, session.key, self._rollout_id)

    def _open(self) -> Session:
        sampling = replace(self._spec.sampling, seed=self._seed)
        budget = self._job.task.budget
        return self._runner._proxy.open(
            self._rollout_id, mode=self._spec.mode, sampling=sampling, max_path_tokens=budget.tokens
        )

    async def _play(self, world: World, session: Session) -> Score:
        started = time.perf_counter()
        wall_s = self._job.task.budget.wall_s
        try:
            async with asyncio.timeout(wall_s):
                await world.reset()
                self._timings["setup"] = time.perf_counter() - started
                with boundary("harness", "run"):
                    await self._runner._harness.run(world, self._endpoint(session))
        except TimeoutError:
            raise RolloutError("budget", "run", f"the attempt took more than {wall_s:g} s") from None
        self._timings["agent"] = time.perf_counter() - started
        score = await world.score()
        if not score.valid:
            raise RolloutError("grader", "score", score.evidence)
        self._timings["grade"] = time.perf_counter() - started - self._timings["agent"]
        self._timings["env"] = world.env_s
        return score

    def _trajectory(
        self, world: World | None, recording: Recording, score: Score | None, failure: Failure | None
    ) -> Trajectory:
        capability = self._runner._proxy.capability
        versions = [c.policy_version for c in recording.calls]
        rollout = Rollout(
            rollout_id=self._rollout_id,
            run_id=self._spec.run_id,
            group_id=self._job.group_id,
            task_id=self._job.task.id,
            sample_index=self._job.sample_index,
            attempt=self._attempt,
            mode=self._spec.mode,
            harness=self._runner._harness.name,
            harness_version=self._runner._harness.version,
            capture_level=capability.capture_level,
            seed=self._seed,
            score=score if failure is None else None,
            failure=failure,
            truncated=world.truncated if world is not None else False,
            timings=self._timings,
            policy_versions=(min(versions), max(versions)) if versions else None,
            findings=tuple(recording.findings),
            task_hash=self._job.task.content_hash,
        )
        steps = tuple(world.steps) if world is not None else ()
        return Trajectory(rollout, tuple(recording.nodes), tuple(recording.calls), steps, recording.tools)


def seed_of(seed: int, name: str) -> int:
    """A seed for `name`, derived from the run's: 63 bits of SHA-256, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8]) >> 1
