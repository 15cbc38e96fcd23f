"""Environments that are used again, each with the one thread that ever touches it.

An environment is made, reset, stepped, graded and closed in a thread of its own: a slow step blocks nobody,
what is bound to a thread (a browser, say) stays in it, and an environment that is given up in the middle of a
step is closed when that step has ended, not under its feet. A step that never ends keeps its thread. Quick
calls take turns, since a hundred threads that want the interpreter's lock at once mostly wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeVar, cast

import gymnasium

from palestra.envs import register_envs
from palestra.envs.env import TaskEnv

T = TypeVar("T")

AT_ONCE = (os.cpu_count() or 1) + 2
"""Calls that compute at one time."""
PATIENCE_S = 0.05
"""A call that takes longer (it waits for a browser, say) no longer counts."""

_log = logging.getLogger(__name__)


class Turns:
    """Lets `AT_ONCE` calls run at a time, and more where those take long."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """For the time of one call."""
        await self._free.acquire()
        slot = ExitStack()
        slot.callback(self._free.release)
        patience = asyncio.get_running_loop().call_later(PATIENCE_S, slot.close)
        try:
            yield
        finally:
            patience.cancel()
            slot.close()


class HostedEnv:
    """One environment and its thread."""

    def __init__(self, env_id: str, turns: Turns) -> None:
        """`start` makes the environment; `env_id` is a Gymnasium id."""
        self.env_id = env_id
        self._turns = turns
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=env_id)
        self._calls: list[Future[Any]] = []
        self._env: TaskEnv | None = None

    async def start(self) -> None:
        """Make the environment. Raises what its constructor raises."""
        await self._submit(self._make)

    async def run(self, function: Callable[[TaskEnv], T]) -> T:
        """function(env), in the thread. When the caller is cancelled, a call that has begun goes on."""
        return await self._submit(lambda: function(cast(TaskEnv, self._env)))

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Tool definitions in the OpenAI function-calling form."""
        return cast(TaskEnv, self._env).tools

    @property
    def idle(self) -> bool:
        """Whether no call is running or waiting."""
        return all(call.done() for call in self._calls)

    def close(self) -> Future[None]:
        """Close the environment, after the call that is running, and let the thread end."""
        closed = self._thread.submit(self._close)
        self._thread.shutdown(wait=False)
        return closed

    async def _submit(self, function: Callable[[], T]) -> T:
        async with self._turns.take():
            call = self._thread.submit(_carried, function)
            self._calls = [c for c in self._calls if not c.done()] + [call]
            return await asyncio.wrap_future(call)

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
        self._turns = Turns()
        self._idle: dict[str, list[HostedEnv]] = defaultdict(list)

    async def acquire(self, env_id: str) -> HostedEnv:
        """An idle environment or a new one. Give it back with `release`, or close it.

        Raises what making the environment raises.
        """
        if self._idle[env_id]:
            return self._idle[env_id].pop()
        env = HostedEnv(env_id, self._turns)
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


def _carried(function: Callable[[], T]) -> T:
    """function(), with what a future cannot carry, or what would end the whole process, as a RuntimeError."""
    try:
        return function()
    except (StopIteration, SystemExit) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
