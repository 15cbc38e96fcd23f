"""One attempt at one job: play, score, and hand back everything that was recorded, whatever happens."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.sessions import Recording, Session
from palestra.rollouts.errors import RolloutError, boundary
from palestra.rollouts.harnesses.base import Endpoint, Harness, ProxyLine
from palestra.rollouts.job import Job, RunSpec
from palestra.rollouts.pool import EnvPool
from palestra.rollouts.world import World
from palestra.trajectories.model import Failure, Rollout, Score, Trajectory


def seed_of(seed: int, name: str) -> int:
    """A seed for `name`, derived from the run's: 63 bits of SHA-256, the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8]) >> 1


class Attempt:
    """Attempt `number` (from 1) at `job`. Run it once."""

    def __init__(
        self, proxy: Proxy, harness: Harness, envs: EnvPool, job: Job, spec: RunSpec, number: int
    ) -> None:
        self._proxy, self._harness, self._envs = proxy, harness, envs
        self._job, self._spec, self._number = job, spec, number
        self._rollout_id = job.rollout_id(spec.run_id)
        self._seed = seed_of(spec.seed, self._rollout_id)
        self._world: World | None = None
        self._timings: dict[str, float] = {}

    async def run(self) -> Trajectory:
        """Play and score. Raises CaptureError; when cancelled, session and environment are closed."""
        session = self._open()
        score: Score | None = None
        failure: Failure | None = None
        try:
            with self._timed("total"):
                score = await self._play(session)
        except RolloutError as error:
            failure = error.failure
        finally:
            recording = self._proxy.close(session)
        # A failure on the proxy's side counts even where the harness went on without its answer.
        failure = recording.failure or failure
        rollout = self._rollout(recording, None if failure is not None else score, failure)
        steps = tuple(self._world.steps) if self._world is not None else ()
        return Trajectory(rollout, recording.nodes, recording.calls, steps, recording.tools, recording.blobs)

    def _open(self) -> Session:
        return self._proxy.open(
            self._rollout_id,
            mode=self._spec.mode,
            sampling=replace(self._spec.sampling, seed=self._seed),
            max_path_tokens=self._job.task.budget.tokens,
        )

    async def _play(self, session: Session) -> Score:
        """One episode in a leased environment. After an exception the environment is not used again."""
        wall_s = self._job.task.budget.wall_s
        deadline = asyncio.get_running_loop().time() + wall_s
        spent = f"the attempt took more than {wall_s:g} s"
        async with _until(deadline, RolloutError("budget", "setup", spent)):
            with self._timed("setup"), boundary("env", "setup"):
                env = await self._envs.acquire(self._job.task.env)
        world = self._world = World(env, self._job.task, self._seed)
        try:
            async with _until(deadline, RolloutError("budget", "run", spent)):
                await self._act(world, session)
            score = await self._grade(world)
        except BaseException:
            env.close()
            raise
        self._envs.release(env)
        return score

    async def _act(self, world: World, session: Session) -> None:
        with self._timed("setup"):
            await world.reset()
        line = ProxyLine(self._proxy, session)
        endpoint = Endpoint(session.base_url, session.key, self._rollout_id, line=line)
        try:
            with self._timed("agent"), boundary("harness", "run"):
                await self._harness.run(world, endpoint)
        finally:
            world.close()

    async def _grade(self, world: World) -> Score:
        limit_s = self._job.task.budget.wall_s
        late = RolloutError("grader", "score", f"grading took more than {limit_s:g} s")
        with self._timed("grade"):
            async with _until(asyncio.get_running_loop().time() + limit_s, late):
                return await world.score()

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Add the time that the block takes to the seconds of `stage`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._timings[stage] = self._timings.get(stage, 0.0) + time.perf_counter() - started

    def _rollout(self, recording: Recording, score: Score | None, failure: Failure | None) -> Rollout:
        versions = [version for node in recording.nodes for _, version in node.versions]
        env_s = {"env": self._world.env_s} if self._world is not None else {}
        return Rollout(
            rollout_id=self._rollout_id,
            run_id=self._spec.run_id,
            group_id=self._job.group_id,
            task_id=self._job.task.id,
            sample_index=self._job.sample_index,
            attempt=self._number,
            mode=self._spec.mode,
            harness=self._harness.name,
            harness_version=self._harness.version,
            capture_level=self._proxy.capability.capture_level,
            seed=self._seed,
            score=score,
            failure=failure,
            truncated=self._world.truncated if self._world is not None else False,
            timings=self._timings | env_s,
            policy_versions=(min(versions), max(versions)) if versions else None,
            findings=recording.findings,
            task_hash=self._job.task.content_hash,
        )


@asynccontextmanager
async def _until(deadline: float, late: RolloutError) -> AsyncIterator[None]:
    """Raises `late` where the block runs past `deadline`, in the event loop's time."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise late from None
