"""The world side of a rollout: a Gymnasium environment in which actions and observations are text.

    env = gymnasium.make("palestra/Sql-v0", tasks="sql-tiny")
    observation, info = env.reset(seed=0, options={"task": task})
    observation, reward, terminated, truncated, info = env.step('{"name": "list_tables", "arguments": {}}')

The action is a tool call as JSON or the model's plain text. Any string is legal: a malformed one is answered
with an observation that the agent can learn from. `terminated` means that the agent submitted or that the
world ended, `truncated` that the turn budget ran out. `info` carries

    anchor        names the state that the observation describes; equal anchors are the same decision point
    state_digest  SHA-256 over the whole state: task, turn, and the world
    valid_action  False where the action was malformed or named a tool that does not exist
    timings       seconds, as a mapping: {"step": ...}

A world implements `_begin`, `_anchor`, `_score` and methods marked `@tool`; the rest is here. A step is
deterministic given the task and the seed.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium

from palestra.envs.errors import EnvSetupError, EnvStateError
from palestra.envs.space import Unicode
from palestra.envs.timings import Timings
from palestra.envs.tools import Tool, ToolError, parse_action, tools_of
from palestra.rewards.score import GraderError
from palestra.tasks.registry import load_tasks
from palestra.tasks.task import Task, TaskSet
from palestra.trajectories.model import Score

if TYPE_CHECKING:
    from palestra.envs.sandbox.base import Sandbox

MAX_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A world in the middle of an episode, to be restored any number of times."""

    episode: _Episode
    world: Any


@dataclass(slots=True)
class _Episode:
    task: Task
    steps: int = 0
    over: bool = False
    submitted: bool = False
    expired: bool = False
    score: Score | None = None


class TaskEnv(gymnasium.Env[str, str]):
    """Base of all worlds. One instance plays one episode at a time and can be reset for ever."""

    metadata: dict[str, Any] = {"render_modes": []}
    family: ClassVar[str] = ""
    any_thread: ClassVar[bool] = False
    """Its calls are short, and each may come from another thread: such environments can share one."""
    has_machine: ClassVar[bool] = False
    """Its world is a machine, on which programs can act by themselves: `equip` gives it to them."""
    toolbox: ClassVar[dict[str, Tool]] = {}
    _definitions: ClassVar[list[dict[str, Any]]] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.toolbox = tools_of(cls)
        cls._definitions = [t.definition for t in cls.toolbox.values()]

    def __init__(self, tasks: TaskSet | str | None = None) -> None:
        """`tasks`: where `reset` without a task draws from; a set or the name of a registered one."""
        self.action_space = Unicode()
        self.observation_space = Unicode()
        self._tasks = tasks
        self._episode: _Episode | None = None

    # What a world implements.

    def _begin(self, task: Task) -> str:
        """Build the world of `task` and return the first observation. Raises EnvSetupError."""
        raise NotImplementedError

    def _anchor(self) -> str:
        """A string naming what the agent can know at this point."""
        raise NotImplementedError

    def _state(self) -> str:
        """All that decides what happens next, besides task and turn; the anchor where nothing is hidden."""
        return self._anchor()

    def _score(self) -> Score:
        """Judge the episode as it stands. Raises GraderError where that is impossible."""
        raise NotImplementedError

    def _matched(self) -> bool | None:
        """Whether the action just taken was the expert's; None in a world that knows no expert."""
        return None

    def _freeze(self) -> Any:
        """The state of the world, independent of what happens to it later."""
        raise NotImplementedError

    def _thaw(self, world: Any) -> None:
        """Put the state of the world back. `world` stays usable."""
        raise NotImplementedError

    def _on_text(self, text: str) -> str:
        """Answer an action that is not a tool call. Raises ToolError unless the world understands text."""
        raise ToolError(f"answer with a tool call; the tools are {', '.join(self.toolbox)}")

    def equip(self, sockets: Mapping[int, Path], shared: Mapping[str, Path]) -> tuple[Sandbox, str]:
        """The machine of an episode that has just begun and the directory to work in, for programs that act on it
        themselves (`witness`). It has these sockets and files of the host: `envs.sandbox.base.Backend.create`.

        Raises EnvStateError for a world without one, and once somebody has acted.
        """
        raise EnvStateError(f"{type(self).__name__} has no machine that programs could act on")

    def _witnessed(self) -> None:
        """Forget what was remembered of the world: somebody else has changed it."""

    def solution(self) -> Sequence[str]:
        """Actions that solve the task being played, for checking tasks; empty where none are known."""
        return ()

    def cheats(self) -> Mapping[str, Sequence[str]]:
        """Actions by the name of a cheat, each of which must score 0."""
        return {}

    # What callers use.

    def use(self, tasks: TaskSet | str) -> None:
        """From now on `reset` without a task draws from `tasks`."""
        self._tasks = tasks

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Tool definitions in the OpenAI function-calling form."""
        return self._definitions

    @property
    def task(self) -> Task:
        """The task being played. Raises EnvStateError before the first reset."""
        return self._running().task

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode of `options["task"]`, or of a task drawn with `seed`.

        Returns the first observation (the instruction, and what the world shows at once) and info.
        Raises EnvSetupError when the world of the task cannot be made.
        """
        super().reset(seed=seed)
        self._episode = None
        task = (options or {}).get("task") or self._draw()
        observation = self._begin(task)
        self._episode = _Episode(task)
        return observation, self._info(True, 0.0)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Act once. Reward is the score's value on the last step and 0 before.

        Raises EnvStateError before reset and after the end, GraderError when the outcome cannot be judged.
        """
        episode = self._running()
        if episode.over:
            raise EnvStateError("this episode is over: call reset() before step()")
        started = time.perf_counter()
        observation, valid = self._respond(action)
        return self._advance(observation, valid, started)

    def witness(self, observation: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Write down a step that was taken past `step`: a program has acted on the world itself, and saw this.

        Returns what `step` would: the anchor of the state that the world is in now, and the reward at the end.
        Raises EnvStateError before reset and after the end.
        """
        if self._running().over:
            raise EnvStateError("this episode is over: call reset() before witness()")
        started = time.perf_counter()
        self._witnessed()
        return self._advance(observation, True, started)

    def _advance(
        self, observation: str, valid: bool, started: float
    ) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Count a step that was taken; grade the episode if it is the last."""
        episode = self._running()
        episode.steps += 1
        episode.score = None
        spent = episode.expired or episode.steps >= episode.task.budget.turns
        truncated = spent and not episode.submitted
        episode.over = episode.submitted or truncated
        reward = self._reward() if episode.over else 0.0
        info = self._info(valid, time.perf_counter() - started)
        return observation, reward, episode.submitted, truncated, info

    def score(self) -> Score:
        """The score of the episode as it stands; asked twice at its end, it is graded once.

        Raises GraderError, whatever it is that went wrong in grading.
        """
        episode = self._running()
        if episode.score is not None:
            return episode.score
        try:
            score = self._score()
        except GraderError:
            raise
        except Exception as error:
            raise GraderError(f"{type(error).__name__}: {error}") from error
        if episode.over:
            episode.score = score
        return score

    def finish(self) -> None:
        """For tools: the agent has handed in its answer, the episode ends with this step."""
        self._running().submitted = True

    def expire(self) -> None:
        """For tools: a limit of the world's own is reached, the episode ends with this step, truncated."""
        self._running().expired = True

    def snapshot(self) -> Snapshot:
        """The world as it is now. Restoring it and acting the same way gives the same result."""
        return Snapshot(copy.copy(self._running()), self._freeze())

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from `snapshot`, which stays usable. The environment must be of the same class."""
        self._episode = copy.copy(snapshot.episode)
        self._thaw(snapshot.world)

    def close(self) -> None:
        """Release the world. Calling it twice is fine."""

    # Machinery.

    def _running(self) -> _Episode:
        if self._episode is None:
            raise EnvStateError("call reset() before using this environment")
        return self._episode

    def _reward(self) -> float:
        """The value of the score; one that could not be measured has no value, which is not a zero."""
        score = self.score()
        if score.value is None:
            raise GraderError(f"task {self.task.id!r} could not be graded: {score.evidence}")
        return score.value

    def _draw(self) -> Task:
        if isinstance(self._tasks, str):
            self._tasks = load_tasks(self._tasks)
        if not self._tasks:
            raise EnvSetupError(
                'no task: pass reset(options={"task": ...}) or make the environment with tasks=...'
            )
        task = self._tasks[int(self.np_random.integers(len(self._tasks)))]
        assert isinstance(task, Task)
        return task

    def _respond(self, action: str) -> tuple[str, bool]:
        """(observation, whether the action was valid)."""
        try:
            call = parse_action(action)
            if call is None:
                return self._on_text(action), True
            name, arguments = call
            if name not in self.toolbox:
                raise ToolError(f"there is no tool {name!r}; the tools are {', '.join(self.toolbox)}")
            checked = self.toolbox[name].check(arguments)
        except ToolError as error:
            return _error(error), False
        try:
            return getattr(self, self.toolbox[name].method)(**checked), True
        except ToolError as error:
            return _error(error), True

    def _info(self, valid: bool, seconds: float) -> dict[str, Any]:
        episode = self._running()
        state = f"{episode.task.content_hash}\n{episode.steps}\n{episode.submitted}\n{self._state()}"
        matched = self._matched()
        return {
            "anchor": self._anchor(),
            "state_digest": hashlib.sha256(state.encode()).hexdigest(),
            "valid_action": valid,
            "timings": Timings(step=seconds),
        } | ({} if matched is None else {"matched": matched})


def _error(error: ToolError) -> str:
    """The observation of an error; it may quote the action, which may be of any length."""
    text = f"error: {error}"
    return text if len(text) <= MAX_ERROR_CHARS else text[:MAX_ERROR_CHARS] + "..."
