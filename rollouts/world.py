"""An environment as a harness sees it: asynchronous, and with every step written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from palestra.envs.env import TaskEnv
from palestra.rollouts.errors import boundary
from palestra.tasks.task import Task
from palestra.trajectories.model import EnvStep, Score

T = TypeVar("T")


class World:
    """One episode of one environment. Steps run in `executor`, so that a slow world blocks nobody else."""

    def __init__(self, env: TaskEnv, task: Task, seed: int, executor: Executor) -> None:
        self.task = task
        self.steps: list[EnvStep] = []
        self.observation = ""
        self.over = False
        self.truncated = False
        self.env_s = 0.0
        self._env, self._seed, self._executor = env, seed, executor
        self._anchor = ""

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Tool definitions in the OpenAI function-calling form."""
        return self._env.tools

    async def reset(self) -> str:
        """Begin the episode; returns the first observation. Raises RolloutError at boundary env."""
        with boundary("env", "reset"):
            self.observation, info = await self._run(
                lambda: self._env.reset(seed=self._seed, options={"task": self.task})
            )
        self._anchor = info["anchor"]
        return self.observation

    async def act(self, action: str, call: int | None = None, tool_call_id: str | None = None) -> str:
        """Take one step, caused by the call with sequence number `call`; returns the observation.

        Raises RolloutError at boundary env.
        """
        with boundary("env", "step"):
            observation, reward, terminated, truncated, info = await self._run(lambda: self._env.step(action))
        self.steps.append(
            EnvStep(
                index=len(self.steps),
                call=call,
                tool_call_id=tool_call_id,
                action=action,
                observation=observation,
                reward=reward,
                terminated=terminated,
                truncated=truncated,
                anchor=self._anchor,
                state_digest=info["state_digest"],
                valid_action=info["valid_action"],
                duration_s=info["timings"]["step"],
            )
        )
        self._anchor, self.observation = info["anchor"], observation
        self.over, self.truncated = terminated or truncated, truncated
        self.env_s += info["timings"]["step"]
        return observation

    def stop(self) -> None:
        """A budget outside the world ran out: the episode ends as it stands, truncated."""
        self.over = self.truncated = True

    async def score(self) -> Score:
        """Judge the episode. Raises RolloutError at boundary grader."""
        with boundary("grader", "score"):
            return await self._run(self._env.score)

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)
