"""palestra/Gymnasium-v0: any Gymnasium environment with discrete or text actions, played in words.

    env = from_gymnasium("FrozenLake-v1", is_slippery=False)
    env = from_gymnasium("minigrid:MiniGrid-Empty-5x5-v0", seeds=range(100))

A task names the environment, its arguments and a seed, so that the same episode can be played anywhere:

    {"gymnasium": {"id": "FrozenLake-v1", "kwargs": {"is_slippery": false}, "seed": 3}}

An action is the tool call act(action) or the bare name of an action. The score is 1 where the environment ended with a
positive reward, or its return with `"score": "return"` in the task's data; `parts["return"]` has it anyway. The anchor
is what the agent sees. `observation_text.py` puts observations into words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np

from palestra.envs.errors import EnvSetupError
from palestra.envs.observation_text import action_names, goal_of, in_words
from palestra.envs.replay import ReplayEnv, View
from palestra.envs.search_solution import shortest_solution
from palestra.envs.space import Unicode
from palestra.envs.tools import ToolError, tool
from palestra.tasks.gymnasium_seeds import seed_tasks
from palestra.tasks.task import Task, TaskSet

Observe = Callable[[gymnasium.Env[Any, Any], Any], str]
"""(environment, observation) -> what the agent reads."""


@dataclass(slots=True)
class _Game:
    """The running environment: names of its actions (None for text), rewards so far."""

    env: gymnasium.Env[Any, Any]
    names: list[str] | None
    total: float = 0.0


class GymnasiumEnv(ReplayEnv):
    """See the module."""

    family: ClassVar[str] = "gymnasium"
    grader: ClassVar[str] = "gymnasium-reward"

    def __init__(self, tasks: TaskSet | str | None = None, observe: Observe | None = None) -> None:
        """`observe`: puts observations into words; a top-level function if the environment is to be pickled."""
        super().__init__(tasks)
        self._observe: Observe = observe or in_words

    @tool
    def act(self, action: str) -> str:
        """Take one action, by its name."""
        return self._move(action)

    def _on_text(self, text: str) -> str:
        return self._move(text)

    def solution(self) -> Sequence[str]:
        """A shortest sequence of actions that ends with a positive reward, where searching finds one."""
        source = _source(self.task)
        if source.get("score", "success") != "success":
            return ()
        names = action_names(_make(source))
        found = shortest_solution(lambda: _make(source), source["seed"]) if names else ()
        return [json.dumps({"name": "act", "arguments": {"action": (names or [])[i]}}) for i in found]

    def _open(self, task: Task) -> View:
        source = _source(task)
        self.close()
        env = _make(source)
        self._program = _Game(env, action_names(env))
        observation, _ = env.reset(seed=source["seed"])
        names = self._program.names
        how = f"Actions: {', '.join(names)}." if names else "Answer with text."
        seen = self._observe(env, observation)
        opening = [part for part in (task.instruction, goal_of(env), how) if part]
        return View("\n".join([*opening, "", seen]), place=seen)

    def _apply(self, move: str) -> View:
        game: _Game = self._program
        observation, reward, ended, expired, _ = game.env.step(_action(game, move))
        game.total += float(reward)
        success = float(bool(ended) and float(reward) > 0)
        value = game.total if _source(self.task).get("score") == "return" else success
        parts = {"return": game.total, "success": success}
        text = self._observe(game.env, observation)
        return View(text, value=value, parts=parts, ended=bool(ended), expired=bool(expired))

    def _shut(self) -> None:
        self._program.env.close()


def from_gymnasium(
    env_id: str,
    *,
    seeds: Iterable[int] = range(100),
    instruction: str = "",
    observe: Observe | None = None,
    score: str = "success",
    **kwargs: Any,
) -> GymnasiumEnv:
    """An environment with text actions around `env_id`, with one task per seed.

    `env_id` may name the package to import first ("minigrid:MiniGrid-Empty-5x5-v0"); `kwargs` go to
    `gymnasium.make` and must be JSON. `score` is "success" (1 where it ended with a positive reward) or "return".

    Raises EnvSetupError where there is no such environment, or its actions are neither discrete nor text.
    """
    tasks = seed_tasks(env_id, {"train": seeds}, kwargs, instruction=instruction, score=score)
    probe = _make(_source(tasks[0]))
    action_names(probe)
    probe.close()
    return GymnasiumEnv(tasks, observe)


def _source(task: Task) -> dict[str, Any]:
    source = task.data.get("gymnasium")
    if not isinstance(source, dict) or not isinstance(source.get("id"), str) or "seed" not in source:
        raise EnvSetupError(
            f"task {task.id!r}: data['gymnasium'] must be {{'id': ..., 'seed': ...}}, got {source!r}"
        )
    return source


def _make(source: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment of a task, rendering as text where it can."""
    kwargs = dict(source.get("kwargs", {}))
    try:
        spec = gymnasium.spec(source["id"].rpartition(":")[2]) if ":" not in source["id"] else None
        if spec is not None and _renders_text(spec):
            kwargs.setdefault("render_mode", "ansi")
        return gymnasium.make(source["id"], disable_env_checker=True, **kwargs)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        raise EnvSetupError(f"the environment {source['id']!r} cannot be made: {error}") from error


def _renders_text(spec: gymnasium.envs.registration.EnvSpec) -> bool:
    made = spec.entry_point
    found = gymnasium.envs.registration.load_env_creator(made) if isinstance(made, str) else made
    return "ansi" in getattr(found, "metadata", {}).get("render_modes", ())


def _action(game: _Game, move: str) -> Any:
    """What the environment takes. Raises ToolError for what it does not."""
    space = game.env.action_space
    if game.names is None:
        if isinstance(space, Unicode) or space.contains(move):
            return move
        raise ToolError(f"the environment does not take this text; it takes {space}")
    wanted = move.strip().lower()
    if wanted not in game.names:
        raise ToolError(f"there is no action {move[:40]!r}; the actions are {', '.join(game.names)}")
    assert isinstance(space, gymnasium.spaces.Discrete)
    return np.int64(space.start + game.names.index(wanted))
