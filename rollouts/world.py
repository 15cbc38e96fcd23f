"""An environment as a harness sees it: asynchronous, and with every step written down.

What the environment returns is checked here, at the door: an observation that is not text, a reward that is
not a finite number or a missing anchor is a failure of the environment, not a measurement of the agent.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from palestra.envs.env import TaskEnv
from palestra.envs.sandbox.base import Sandbox
from palestra.rewards.score import GraderError
from palestra.rollouts.errors import RolloutError, boundary
from palestra.rollouts.pool import HostedEnv
from palestra.tasks.task import Task
from palestra.trajectories.model import EnvStep, Score

Result = tuple[str, float, bool, bool, dict[str, Any]]
"""What a step of an environment returns."""


class World:
    """One episode of one environment, one step at a time whatever the harness does."""

    def __init__(self, env: HostedEnv, task: Task, seed: int) -> None:
        self.task = task
        self.steps: list[EnvStep] = []
        self.observation = ""
        self.image: bytes | None = None
        """PNG of what the observation describes, from environments that give `info["image"]`."""
        self.over = False
        self.truncated = False
        self.env_s = 0.0
        self._env, self._seed = env, seed
        self._anchor = ""
        self._turn = asyncio.Lock()
        self._broken: RolloutError | None = None

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Tool definitions in the OpenAI function-calling form."""
        return self._env.tools

    @property
    def has_machine(self) -> bool:
        """Whether programs can act on the world by themselves: `equip`."""
        return self._env.has_machine

    async def equip(self, sockets: Mapping[int, Path], shared: Mapping[str, Path]) -> tuple[Sandbox, str]:
        """The machine of an episode that has just begun, with these sockets and files of this one, and the directory
        to work in. Write down what programs do to it by `witness`. Raises RolloutError at boundary env.
        """
        with boundary("env", "equip"):
            return await self._env.run(lambda env: env.equip(sockets, shared))

    async def reset(self) -> str:
        """Begin the episode; returns the first observation. Raises RolloutError at boundary env."""
        options = {"task": self.task}
        with boundary("env", "reset"):
            observation, info = await self._env.run(lambda env: env.reset(seed=self._seed, options=options))
            self.observation, self._anchor = _text(observation), _text(info["anchor"])
            self.image = info.get("image")
        return self.observation

    async def act(self, action: str, call: int | None = None, tool_call_id: str | None = None) -> str:
        """Take one step, caused by the call with sequence number `call`; returns the observation.

        Raises RolloutError: at boundary env, at grader where the last step could not be judged, at harness
        for a step after the end. A step that broke, or whose caller was cancelled in the middle of it, breaks
        the episode: neither a later step nor the score can be had.
        """
        return await self._take(action, lambda env: env.step(action), call, tool_call_id)

    async def witness(
        self, action: str, observation: str, call: int | None = None, tool_call_id: str | None = None
    ) -> str:
        """Write down a step that a program took past `act`, by itself on the machine of the world.

        The state is looked at now: ask before the program acts again, best when its next request comes in.
        Raises what `act` raises.
        """
        return await self._take(action, lambda env: env.witness(observation), call, tool_call_id)

    async def _take(
        self, action: str, take: Callable[[TaskEnv], Result], call: int | None, tool_call_id: str | None
    ) -> str:
        async with self._turn:
            with boundary("harness", "step"):
                self._check_action(action)
            try:
                with boundary("env", "step"):
                    step, anchor = await self._step(action, take, call, tool_call_id)
            except RolloutError as error:
                self._broken = error
                raise
            except asyncio.CancelledError:
                self._broken = RolloutError("harness", "step", "it cancelled a step that was under way")
                raise
            self.steps.append(step)
            self._anchor, self.observation = anchor, step.observation
            self.over = self.over or step.terminated or step.truncated
            self.truncated = self.truncated or step.truncated
            self.env_s += step.duration_s
            return step.observation

    def stop(self) -> None:
        """A budget outside the world ran out: the episode ends as it stands, truncated."""
        self.over = self.truncated = True

    def close(self) -> None:
        """The harness has returned: what it left running can act no more."""
        self.over = True

    async def score(self) -> Score:
        """Judge the episode, after a step that is under way.

        Raises RolloutError at boundary grader, also for a score that is not valid; what broke the episode where
        something did, whether or not the harness got to see it.
        """
        async with self._turn:
            if self._broken is not None:
                raise self._broken
            with boundary("grader", "score"):
                score = _storable(await self._env.run(TaskEnv.score))
        if not score.valid:
            raise RolloutError("grader", "score", score.evidence)
        return score

    def _check_action(self, action: str) -> None:
        if self._broken is not None:
            raise self._broken
        if self.over:
            raise RolloutError("harness", "step", "it acted after the end of the episode")
        _text(action)

    async def _step(
        self, action: str, take: Callable[[TaskEnv], Result], call: int | None, tool_call_id: str | None
    ) -> tuple[EnvStep, str]:
        """The step as it is recorded, and the anchor of the state after it."""
        try:
            result = await self._env.run(take)
        except GraderError as error:
            raise RolloutError("grader", "step", str(error)) from error
        observation, reward, terminated, truncated, info = result
        self.image = info.get("image")
        if not math.isfinite(reward):
            raise ValueError(f"the reward of a step must be finite, got {reward!r}")
        step = EnvStep(
            index=len(self.steps),
            call=call,
            tool_call_id=tool_call_id,
            action=action,
            observation=_text(observation),
            reward=float(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            anchor=self._anchor,
            state_digest=_text(info["state_digest"]),
            valid_action=bool(info["valid_action"]),
            duration_s=float(info["timings"]["step"]),
            matched=info.get("matched"),
        )
        return step, _text(info["anchor"])


def _text(value: object) -> str:
    """`value`, if it is text that can be stored and sent. Raises TypeError and UnicodeEncodeError."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    value.encode()
    return value


def _storable(score: object) -> Score:
    """`score` with plain numbers. Raises TypeError and ValueError for what is not a score."""
    if not isinstance(score, Score):
        raise TypeError(f"a grader returns a Score, this one returned {type(score).__name__}")
    value = None if score.value is None else float(score.value)
    parts = {_text(name): float(part) for name, part in score.parts.items()}
    for text in (score.grader, score.grader_version, score.evidence):
        _text(text)
    return replace(score, value=value, parts=parts)
