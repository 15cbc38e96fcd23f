"""One world that somebody outside plays: in a thread of its own, one call at a time, one episode until it is over."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvError, SessionError
from palestra.rewards.score import GraderError
from palestra.tasks.errors import TaskError
from palestra.tasks.task import Task, TaskSet

T = TypeVar("T")

EXPECTED = (EnvError, GraderError, TaskError)
"""What a world may raise on purpose; a service answers with its text."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What reset or step returned. `reward` is None after a reset."""

    observation: str
    reward: float | None
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def over(self) -> bool:
        """Whether the episode has ended with this turn."""
        return self.terminated or self.truncated


class Episode:
    """A world and the thread that it lives in. Any number of resets, each of which begins a new episode."""

    def __init__(self, make: Callable[[], TaskEnv], tasks: TaskSet, name: str = "") -> None:
        """`tasks`: what may be asked for by id, and drawn from by seed."""
        self.id = name or uuid.uuid4().hex
        self.steps = 0
        self.used_s = time.monotonic()
        self._make, self._tasks = make, tasks
        self._env: TaskEnv | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"episode-{self.id[:8]}")

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Tool definitions in the OpenAI function-calling form; known after the first reset."""
        return self._env.tools if self._env is not None else []

    @property
    def task(self) -> Task:
        """The task being played. Raises EnvStateError before the first reset."""
        if self._env is None:
            raise SessionError(f"episode {self.id!r} has not begun: reset it first")
        return self._env.task

    async def reset(self, seed: int | None = None, task_id: str | None = None) -> Turn:
        """Begin an episode of a task by id, or of one drawn by `seed`. Raises EnvError, TaskError."""
        task = self._find(task_id) if task_id is not None else None
        self.steps = 0
        observation, info = await self._run(lambda: self._world().reset(seed=seed, options={"task": task}))
        return Turn(observation, None, False, False, info)

    async def act(self, action: str) -> Turn:
        """Take one step. Raises SessionError before a reset, EnvStateError after the end, GraderError."""
        if self._env is None:
            raise SessionError(f"episode {self.id!r} has not begun: reset it first")
        env = self._env
        turn = Turn(*await self._run(lambda: env.step(action)))
        self.steps += 1
        return turn

    def close(self) -> None:
        """End the world after the call that is running. Calling it twice is fine."""
        env, self._env = self._env, None
        if env is not None:
            self._thread.submit(env.close)
        self._thread.shutdown(wait=False)

    async def _run(self, function: Callable[[], T]) -> T:
        self.used_s = time.monotonic()
        return await asyncio.wrap_future(self._thread.submit(function))

    def _world(self) -> TaskEnv:
        if self._env is None:
            self._env = self._make()
        return self._env

    def _find(self, task_id: str) -> Task:
        task = self._tasks.get(task_id)
        if task is None:
            raise SessionError(f"there is no task {task_id!r} among the {len(self._tasks)} that are served")
        return task


class Episodes:
    """Episodes by id, apart from each other: at most `max_sessions`, and none idle for longer than `idle_s`."""

    def __init__(
        self, make: Callable[[], TaskEnv], tasks: TaskSet, *, max_sessions: int = 64, idle_s: float = 1800.0
    ) -> None:
        self.tasks = tasks
        self._make, self._max_sessions, self._idle_s = make, max_sessions, idle_s
        self._open: dict[str, Episode] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, name: object) -> bool:
        return name in self._open

    def open(self, name: str = "") -> Episode:
        """A new one. Raises SessionError where there are too many, or one of this name."""
        self._drop_idle()
        if len(self._open) >= self._max_sessions:
            raise SessionError(f"{self._max_sessions} episodes are open, which is the most: close one first")
        if name in self._open:
            raise SessionError(f"there is an episode {name!r} already")
        episode = Episode(self._make, self.tasks, name)
        self._open[episode.id] = episode
        return episode

    def get(self, name: str) -> Episode:
        """An open episode. Raises SessionError for one that is not known (any more)."""
        if name not in self._open:
            raise SessionError(f"there is no episode {name[:64]!r}: never opened, closed, or idle too long")
        return self._open[name]

    def close(self, name: str) -> None:
        """End one, if it is there."""
        episode = self._open.pop(name, None)
        if episode is not None:
            episode.close()

    def close_all(self) -> None:
        """End all of them."""
        for name in list(self._open):
            self.close(name)

    def _drop_idle(self) -> None:
        oldest = time.monotonic() - self._idle_s
        for name in [name for name, episode in self._open.items() if episode.used_s < oldest]:
            self.close(name)
