"""Is a task fit to learn from and to measure with? `validate_task` plays it and says.

Four checks, each by playing the task's own environment: the known solution scores 1, doing nothing scores 0,
the known cheats score 0, and the same actions give the same observations, states and scores in a second
environment.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium

from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvError
from palestra.rewards.score import GraderError
from palestra.tasks.errors import TaskError
from palestra.tasks.task import Task
from palestra.trajectories.model import Score


@dataclass(frozen=True, slots=True)
class Check:
    """One check; `detail` says what was found."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one task."""

    task_id: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def validate_task(task: Task) -> Report:
    """Play `task` and report. A world or a grader that fails is a failed check, not an exception."""
    return Report(task.id, tuple(_checks(task)))


def validate_tasks(tasks: Sequence[Task], workers: int, prepare: Callable[[], object]) -> Iterator[Report]:
    """The reports of `tasks` as they come, `workers` at a time, each in a process of its own.

    `prepare`, a function that can be pickled, is called in each process first: it imports what registers the worlds.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), context, prepare) as pool:
        pending = [pool.submit(validate_task, task) for task in tasks]
        try:
            yield from (done.result() for done in as_completed(pending))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _checks(task: Task) -> Iterator[Check]:
    yield _check("gold scores 1", lambda: _gold(task))
    yield _check("no-op scores 0", lambda: _no_op(task))
    yield _check("repeats agree", lambda: _repeats(task))
    yield _check("cheats score 0", lambda: _cheats(task))


def _check(name: str, run: Callable[[], tuple[bool, str]]) -> Check:
    try:
        return Check(name, *run())
    except (EnvError, GraderError, TaskError) as error:
        return Check(name, False, str(error))


def _gold(task: Task) -> tuple[bool, str]:
    with _started(task) as env:
        actions = env.solution()
    if not actions:
        return False, "the environment knows no solution of this task"
    score = _outcome(task, actions)
    return score.value == 1.0, score.evidence


def _no_op(task: Task) -> tuple[bool, str]:
    score = _outcome(task, ())
    return score.value == 0.0, score.evidence


def _repeats(task: Task) -> tuple[bool, str]:
    first, second = (_trace(task) for _ in range(2))
    return first == second, "two plays agree" if first == second else f"{first!r} differs from {second!r}"


def _cheats(task: Task) -> tuple[bool, str]:
    with _started(task) as env:
        cheats = env.cheats()
    scores = {name: _outcome(task, actions).value for name, actions in cheats.items()}
    return not any(scores.values()), ", ".join(f"{name}: {value}" for name, value in scores.items())


@contextmanager
def _started(task: Task) -> Iterator[TaskEnv]:
    """An environment in which `task` has begun; it is closed at the end."""
    try:
        env = gymnasium.make(task.env).unwrapped
    except gymnasium.error.Error as error:
        raise EnvError(f"there is no environment {task.env!r}: {error}") from error
    if not isinstance(env, TaskEnv):
        raise EnvError(f"{task.env} is a {type(env).__name__}; only a TaskEnv can be validated")
    with closing(env):
        env.reset(seed=0, options={"task": task})
        yield env


def _outcome(task: Task, actions: Sequence[str]) -> Score:
    with _started(task) as env:
        _play(env, actions)
        return env.score()


def _play(env: TaskEnv, actions: Sequence[str]) -> list[tuple[Any, ...]]:
    """(observation, reward, terminated, truncated, anchor, state digest) per action, to the end of the episode."""
    steps = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append((observation, reward, terminated, truncated, info["anchor"], info["state_digest"]))
        if terminated or truncated:
            break
    return steps


def _trace(task: Task) -> list[tuple[Any, ...]]:
    with _started(task) as env:
        probes = [json.dumps({"name": name, "arguments": {}}) for name in env.toolbox]
        return _play(env, [*probes, *env.solution()][: task.budget.turns])
