"""A shortest solution of a small Gymnasium environment, by playing it: for checking tasks, not for agents."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium

MAX_STEPS = 60_000
"""Steps of the environment after which the search gives up; about a second for the toy environments."""


def shortest_solution(make: Callable[[], gymnasium.Env[Any, Any]], seed: int) -> Sequence[int]:
    """Indices of actions after which the environment ends with a positive reward; empty where none was found.

    Breadth first over observations, each reached again by repeating its actions from `seed`. Where equal observations
    are different states it may miss solutions, but what it returns is one.
    """
    env = make()
    first, _ = env.reset(seed=seed)
    width, steps = int(env.action_space.n), 0  # type: ignore[attr-defined]
    start = int(env.action_space.start)  # type: ignore[attr-defined]
    waiting: deque[tuple[int, ...]] = deque([()])
    known = {pickle.dumps(first)}
    while waiting and steps < MAX_STEPS:
        path = waiting.popleft()
        for action in range(width):
            env.reset(seed=seed)
            for move in path:
                env.step(start + move)
            observation, reward, ended, expired, _ = env.step(start + action)
            steps += len(path) + 1
            if ended and float(reward) > 0:
                return (*path, action)
            key = pickle.dumps(observation)
            if not (ended or expired) and key not in known:
                known.add(key)
                waiting.append((*path, action))
    return ()
