"""Environments that are used again, each in a thread of its own or in one of a crew's (`threads.py`).

An environment is made, reset, stepped, graded and closed outside of the event loop: a slow step blocks nobody,
what is bound to a thread (a browser, say) stays in it, and an environment that is given up in the middle of a
step is closed when that step has ended, not under its feet. A step that never ends keeps its thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

import gymnasium

from palestra.envs import register_envs
from palestra.envs.env import TaskEnv
from palestra.rollouts.threads import Crew, CrewHost, Host, OwnThread

T = TypeVar("T")

_log = logging.getLogger(__name__)


class HostedEnv:
    """One environment and where it lives."""

    def __init__(self, env_id: str, crew: Crew) -> None:
        """`start` makes the environment; `env_id` is a Gymnasium id."""
        self.env_id = env_id
        self._crew = crew
        self._host: Host = OwnThread(env_id)
        self._env: TaskEnv | None = None

    async def start(self) -> None:
        """Make the environment; one that any thread may touch joins the crew. Raises what its constructor
        raises."""
        await self._host.run(self._make)
        if cast(TaskEnv, self._env).any_thread:
            self._host.end(lambda: None)
            self._host = CrewHost(self._crew)

    async def run(self, function: Callable[[TaskEnv], T]) -> T:
        """function(env), in its thread. When the caller is cancelled, a call that has begun goes on."""
        return await self._host.run(lambda: function(cast(TaskEnv, self._env)))

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Tool definitions in the OpenAI function-calling form."""
        return cast(TaskEnv, self._env).tools

    @property
    def has_machine(self) -> bool:
        """See `TaskEnv.has_machine`."""
        return cast(TaskEnv, self._env).has_machine

    @property
    def idle(self) -> bool:
        """Whether no call is running or waiting."""
        return self._host.idle

    def close(self) -> Future[None]:
        """Close the environment, after the call that is running, and leave its thread."""
        return self._host.end(self._close)

    def _make(self) -> None:
        self._env = cast(TaskEnv, gymnasium.make(self.env_id).unwrapped)

    def _close(self) -> None:
        try:
            if self._env is not None:
                self._env.close()
        except Exception:  # nobody waits for it, and the rollout has ended
            _log.exception("an environment %s did not close", self.env_id)


class EnvPool:
    """Idle environments by id. Use it from one event loop."""

    def __init__(self) -> None:
        register_envs()
        self._crew = Crew()
        self._idle: dict[str, list[HostedEnv]] = defaultdict(list)

    async def acquire(self, env_id: str) -> HostedEnv:
        """An idle environment or a new one. Give it back with `release`, or close it.

        Raises what making the environment raises.
        """
        if self._idle[env_id]:
            return self._idle[env_id].pop()
        env = HostedEnv(env_id, self._crew)
        try:
            await env.start()
        except BaseException:
            env.close()
            raise
        return env

    def release(self, env: HostedEnv) -> None:
        """Keep `env` for another attempt; one that a harness left in the middle of a step is closed."""
        if env.idle:
            self._idle[env.env_id].append(env)
        else:
            env.close()

    async def aclose(self) -> None:
        """Close the idle environments. Calling it twice is fine."""
        closing = [env.close() for envs in self._idle.values() for env in envs]
        self._idle.clear()
        await asyncio.gather(*map(asyncio.wrap_future, closing))
        self._crew.close()
        self._crew = Crew()
