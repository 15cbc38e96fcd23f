"""A small corpus on disk, tasks over it, and calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from palestra.envs.env import TaskEnv
from palestra.tasks.task import Budget, Task
from search_files import lines

PASSAGES = {
    "ann": ("Ann Lee", "Ann Lee wrote The Quiet Sea. She was born in Dorn."),
    "dorn": ("Dorn", "Dorn is a town on the river Elm. " + "It rains there. " * 300 + "The mayor is Bo."),
    "elm": ("Elm", "The Elm is a river."),
    "bo": ("Bo", "Bo is the mayor of a town."),
}


def corpus_file(folder: Path, **more: str) -> Path:
    """PASSAGES, and more of them as id=text, in Search-R1's format."""
    passages = PASSAGES | {name: (name, text) for name, text in more.items()}
    records = [{"id": name, "contents": f'"{title}"\n{text}'} for name, (title, text) in passages.items()]
    return lines(folder / "corpus.jsonl", *records)


def search_task(path: Path, turns: int = 10, **data: Any) -> Task:
    told = {"corpus": {"path": str(path)}, "answers": ["Bo"], "evidence": ["Dorn"]}
    return Task(
        id="search/1",
        family="search",
        env="palestra/Search-v0",
        split="test",
        instruction="Who is the mayor of the town where Ann Lee was born?",
        data=told | data,
        budget=Budget(turns=turns),
    )


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def look(env: TaskEnv, name: str, **arguments: Any) -> str:
    """What the tool answers; the episode must go on."""
    observation, reward, terminated, truncated, _ = env.step(call(name, **arguments))
    assert reward == 0.0 and not terminated and not truncated
    return observation
