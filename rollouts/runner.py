"""The runner: many attempts at many tasks, at once, each recorded whole or not at all.

    runner = Runner(proxy, ToolLoop(), store=store)
    trajectories = await runner.run(jobs, RunSpec(run_id="r1", mode="train", seed=0))

Each job is one attempt (`attempt.py`): an environment, a fresh proxy session, one harness run, one score, and
one record in the store. What breaks is attributed to a boundary; failures of infrastructure are tried again.
A job whose rollout is in the store already is not run again: an interrupted run continues where it was. What
a killed process had answered is on disk; it is kept as a failed rollout of run "<run>~lost" and the job is played
again as the next attempt.

A spent turn or token budget ends an episode as truncated and it is graded as it stands. A spent wall clock is
a failure at boundary budget and has no reward: how long an attempt takes depends on the machine.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from palestra.harness_proxy.server import Proxy
from palestra.rollouts.attempt import Attempt, seed_of
from palestra.rollouts.errors import ResumeError
from palestra.rollouts.harnesses.base import Harness
from palestra.rollouts.job import Job, RunSpec
from palestra.rollouts.pool import EnvPool
from palestra.tasks.task import Task
from palestra.trajectories.journal import Journal
from palestra.trajectories.model import Rollout, Trajectory
from palestra.trajectories.store import Store

__all__ = ["Job", "RunSpec", "Runner", "group_jobs", "seed_of"]

OnDone = Callable[[Rollout], None]


def group_jobs(tasks: Sequence[Task], size: int, prefix: str = "") -> list[Job]:
    """`size` attempts at each task, as one group per task; `prefix` sets groups of one task apart.

    A task that is there again makes another group, "<id>#2" and so on.
    """
    jobs: list[Job] = []
    seen: Counter[str] = Counter()
    for task in tasks:
        seen[task.id] += 1
        again = f"#{seen[task.id]}" if seen[task.id] > 1 else ""
        jobs += [Job(task, f"{prefix}{task.id}{again}", k) for k in range(size)]
    return jobs


class Runner:
    """Runs jobs over one proxy with one harness."""

    def __init__(
        self, proxy: Proxy, harness: Harness, *, store: Store | None = None, concurrency: int = 128
    ) -> None:
        """`store`: where rollouts are committed, None to keep them in memory alone.

        `concurrency`: attempts at once. Raises ValueError where it is below 1.
        """
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, got {concurrency}")
        self._proxy, self._harness, self._store = proxy, harness, store
        self._slots = asyncio.Semaphore(concurrency)
        self._envs = EnvPool()

    async def run(
        self, jobs: Sequence[Job], spec: RunSpec, on_done: OnDone | None = None
    ) -> list[Trajectory]:
        """Run `jobs` and return their trajectories in the order of the jobs, failed ones included.

        `on_done` is called after each commit, and for rollouts that are in the store already.

        Raises StoreFullError when records cannot be kept; what was committed stays, and the same call goes on
        later. Raises ResumeError for a stored rollout that this run would play differently, CaptureError for
        train mode on an engine that gives no tokens, ValueError for a job that is there twice.
        """
        _check_distinct(jobs, spec)
        try:
            async with asyncio.TaskGroup() as group:
                pending = [group.create_task(self._job(job, spec, on_done)) for job in jobs]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return [task.result() for task in pending]

    async def aclose(self) -> None:
        """Close environments and the harness. Calling it twice is fine."""
        try:
            await self._harness.aclose()
        finally:
            await self._envs.aclose()

    async def _job(self, job: Job, spec: RunSpec, on_done: OnDone | None) -> Trajectory:
        trajectory = self._recall(job, spec)
        if trajectory is None:
            async with self._slots:
                trajectory, journals = await self._attempts(job, spec)
            try:
                if self._store is not None:
                    self._store.append(trajectory)
            finally:  # what could not be committed is played again, as everything that is not committed
                for journal in journals:
                    journal.discard()
        if on_done is not None:
            on_done(trajectory.rollout)
        return trajectory

    def _recall(self, job: Job, spec: RunSpec) -> Trajectory | None:
        """The rollout of `job` if it is in the store."""
        rollout_id = job.rollout_id(spec.run_id)
        if self._store is None or rollout_id not in self._store:
            return None
        trajectory = self._store.get(rollout_id)
        _check_same(trajectory.rollout, job, spec)
        return trajectory

    async def _attempts(self, job: Job, spec: RunSpec) -> tuple[Trajectory, list[Journal]]:
        """The first attempt that ends, or the last one that infrastructure let down; and what to discard once
        it is committed."""
        journals: list[Journal] = []
        findings = tuple(self._lost(job, spec))
        first = len(findings) + 1
        for number in range(first, first + spec.attempts):
            attempt = Attempt(self._proxy, self._harness, self._envs, job, spec, number, self._store)
            trajectory = await attempt.run()
            journals += [attempt.journal] if attempt.journal is not None else []
            failure = trajectory.rollout.failure
            if failure is None or not failure.retryable or number == first + spec.attempts - 1:
                break
            findings += (
                f"attempt {number} failed at {failure.boundary} in {failure.stage}: {failure.message}",
            )
        rollout = replace(trajectory.rollout, findings=findings + trajectory.rollout.findings)
        return replace(trajectory, rollout=rollout), journals

    def _lost(self, job: Job, spec: RunSpec) -> Iterator[str]:
        """A finding for each attempt at `job` that died with its process and whose calls were recovered."""
        number = 1
        while self._store is not None and (lost := job.lost_id(spec.run_id, number)) in self._store:
            yield f"attempt {number} was lost with its process, its calls are kept as {lost}"
            number += 1


def _check_distinct(jobs: Sequence[Job], spec: RunSpec) -> None:
    counts = Counter(job.rollout_id(spec.run_id) for job in jobs)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(
            f"{len(twice)} jobs are there more than once, {twice[0]!r} among them: give each one "
            "a group_id and sample_index of its own"
        )


def _check_same(stored: Rollout, job: Job, spec: RunSpec) -> None:
    """Raises ResumeError where `stored` is not what `job` would give."""
    wanted = {
        "run_id": spec.run_id,
        "group_id": job.group_id,
        "task_hash": job.task.content_hash,
        "mode": spec.mode,
        "seed": seed_of(spec.seed, stored.rollout_id),
    }
    for name, value in wanted.items():
        found = getattr(stored, name)
        if found != value:
            raise ResumeError(
                f"rollout {stored.rollout_id!r} is in the store with {name} {found!r}, and this run has "
                f"{value!r}: use another run_id or an empty store"
            )
