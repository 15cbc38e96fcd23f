"""Frozen lakes for `learning.py`: a world of many turns in which the rollouts of a task meet the same states again.

An agent sees its own cell and the four beside it, never the map, so it walks towards the goal in the lower right
corner, comes into dead ends and turns back. A lake of 5 x 5 cells takes eight moves where nothing is in the way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
from rich.console import Console

from palestra.cli.progress import progress
from palestra.envs.replay import View
from palestra.envs.wrapped import GymnasiumEnv
from palestra.rollouts.world import World
from palestra.tasks.gymnasium_seeds import load_frozen_lake
from palestra.tasks.task import Task, TaskSet
from palestra.training.apprentice import Teacher, learned
from palestra.training.demonstrations import tool_call
from palestra.training.warmstart import WarmStart

ENV_ID = "benchmarks/Lake-v0"
SIZE, TURNS = 5, 20
MOVES: Mapping[str, tuple[int, int]] = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
"""In rows and columns."""
CELLS = {"S": "ice", "F": "ice", "H": "hole", "G": "goal"}
WORDS = (*(f"{move} {cell}" for move in MOVES for cell in ("ice", "hole", "goal", "edge")), *MOVES)
CARE = 0.45
"""Share of the demonstrated moves that lie on a shortest way; the others are any of the four."""
DEMONSTRATIONS = 400
Cell = tuple[int, int]


def load() -> TaskSet:
    """2,000 lakes to learn on, some of them alike, and 100 others to look at."""
    tasks = [
        t.model_copy(update={"env": ENV_ID}) for t in load_frozen_lake(SIZE, train=2000, dev=1, test=100)
    ]
    budget = {"turns": TURNS}
    return TaskSet(
        "lakes", [t.model_copy(update={"budget": t.budget.model_copy(update=budget)}) for t in tasks]
    )


class LakeEnv(GymnasiumEnv):
    """FrozenLake, seen from where one stands."""

    def __init__(self, tasks: TaskSet | str | None = None) -> None:
        super().__init__(tasks, observe=surroundings)

    def _open(self, task: Task) -> View:
        view = super()._open(task)
        return replace(view, text=f"Walk over the ice to the goal.\n{view.place}")


def surroundings(env: gymnasium.Env[Any, Any], observation: Any) -> str:
    """ "2 3: left edge, down ice, right hole, up ice": row and column, and what is next to it."""
    desc = [[c.decode() for c in row] for row in env.unwrapped.desc]  # type: ignore[attr-defined]
    row, column = divmod(int(observation), len(desc))
    beside = ", ".join(f"{move} {_cell(desc, (row + d, column + e))}" for move, (d, e) in MOVES.items())
    return f"{row} {column}: {beside}"


def _cell(desc: Sequence[Sequence[str]], at: Cell) -> str:
    row, column = at
    return CELLS[desc[row][column]] if 0 <= row < len(desc) and 0 <= column < len(desc) else "edge"


class Stroller:
    """Knows the map and is absent-minded."""

    def __init__(self, seed: int) -> None:
        """Choices depend on the seed and the task alone."""
        self._seed = seed

    def play(self, world: World) -> Iterator[str]:
        """Replies in Qwen3's tool-call format, for a `Demonstrator`."""
        rng = random.Random(f"{self._seed}/{world.task.id}")
        far = distances(world.task.data["gymnasium"]["kwargs"]["desc"])
        at = (0, 0)
        while True:
            ways = [m for m in MOVES if far.get(_moved(at, m), SIZE**2) < far[at]]
            move = rng.choice(ways if rng.random() < CARE else list(MOVES))
            at = _moved(at, move)
            yield tool_call("act", action=move)


def distances(desc: Sequence[str]) -> dict[Cell, int]:
    """Moves from each cell of the ice to the goal, by the shortest way."""
    goal = (len(desc) - 1, len(desc) - 1)
    far, waiting = {goal: 0}, [goal]
    for at in waiting:
        for move in MOVES:
            cell = _moved(at, move)
            if cell not in far and desc[cell[0]][cell[1]] != "H":
                far[cell] = far[at] + 1
                waiting.append(cell)
    return far


def _moved(at: Cell, move: str) -> Cell:
    """The cell that `move` leads to; at an edge one stays."""
    row, column = at[0] + MOVES[move][0], at[1] + MOVES[move][1]
    return min(max(row, 0), SIZE - 1), min(max(column, 0), SIZE - 1)


async def prepare(directory: Path, seed: int, console: Console) -> Path:
    """The policy of a seed: a random Qwen3 that has read what a Stroller did. Where it is."""
    tasks = random.Random(seed).sample(list(load().split("train")), DEMONSTRATIONS)
    teacher, config = Teacher(Stroller(seed).play, tasks, seed), WarmStart(steps=150, seed=seed)
    with progress(console, "warm start", config.steps) as advance:
        return await learned(
            directory, teacher, lambda _: WORDS, config, on_step=lambda _, loss: advance(f"loss {loss:.3f}")
        )


gymnasium.register(
    id=ENV_ID,
    entry_point=f"{__name__}:LakeEnv",
    kwargs={"tasks": f"{__name__}:load"},
    disable_env_checker=True,
    order_enforce=False,
)
