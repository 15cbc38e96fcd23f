"""Recorded GUI trajectories, for learning without the application: every step has what was seen and what was done.

Files are in the form of UI-S1 (arXiv:2509.11543, X-PLUG/MobileAgent/UI-S1): one trajectory per line or list item,
    {"goal": ..., "steps": [{"action_content": {"action": "click", "coordinate": [x, y], "text": ...},
                             "screenshot": path, "bbox": [x1, y1, x2, y2], "observation": ...}, ...]}
`observation` is text for policies without eyes; where it is missing, the screenshot is named by the SHA-256 of its
file. Without a file, `web-offline` is a small made-up set.
"""

from __future__ import annotations

import functools
import hashlib
import random
from pathlib import Path
from typing import Any

from palestra.tasks.errors import TaskFileError
from palestra.tasks.files import read_records
from palestra.tasks.task import Budget, Split, Task, TaskSet

_WORDS = ["lamp", "kettle", "spade", "chair", "desk", "candle", "teapot", "hose"]
_COUNTS: dict[Split, int] = {"train": 40, "dev": 10, "test": 20}


def load(path: str = "", split: Split = "train") -> TaskSet:
    """The trajectories of a file, all in one split, or the made-up set. Raises TaskFileError."""
    if not path:
        return made_up()
    records = read_records(Path(path))
    tasks = [
        _task(record, f"{path}, {where}", f"{Path(path).stem}/{where}", split) for where, record in records
    ]
    return TaskSet("web-offline", tasks)


@functools.cache
def made_up() -> TaskSet:
    """Three steps each: open the search, type a word, press the button."""
    return TaskSet("web-offline", [_made(split, n) for split, count in _COUNTS.items() for n in range(count)])


def _made(split: Split, number: int) -> Task:
    rng = random.Random(f"web-offline/{split}/{number}")
    word, x, y = rng.choice(_WORDS), rng.randint(20, 300), rng.randint(20, 300)
    shown = f'link "Home" at 10,10; link "Search" at {x},{y}'
    steps = [
        {"observation": shown, "action": {"type": "click", "target": [x - 5, y - 5, 10, 10]}},
        {"observation": "textbox focused", "action": {"type": "type", "value": word}},
        {"observation": f'textbox "{word}"; button "Go" at {y},{x}', "action": {"type": "click", "target": [y, x]}},
    ]  # fmt: skip
    return _make(f"made-up/{split}/{number:03d}", split, f"Search for a {word}.", steps)


def _task(record: Any, where: str, name: str, split: Split) -> Task:
    try:
        steps = [_step(step, where) for step in record["steps"]]
        goal = str(record["goal"])
    except (KeyError, TypeError, ValueError) as error:
        raise TaskFileError(f"{where}: {type(error).__name__}: {error}") from error
    if not steps:
        raise TaskFileError(f"{where}: there are no steps")
    return _make(name, split, goal, steps)


def _step(step: dict[str, Any], where: str) -> dict[str, Any]:
    content = dict(step["action_content"])
    action: dict[str, Any] = {"type": str(content.pop("action"))}
    box = step.get("bbox")
    target = _box(box) if box else content.pop("coordinate", None)
    value = content.get("text") or content.get("button") or content.get("direction") or content.get("status")
    action |= {"target": target} if target is not None else {}
    action |= {"value": value} if value is not None else {}
    return {
        "observation": step.get("observation") or _picture(step.get("screenshot"), where),
        "action": action,
    }


def _box(corners: list[float]) -> list[float]:
    """(x, y, width, height) from two corners."""
    x1, y1, x2, y2 = corners
    return [x1, y1, x2 - x1, y2 - y1]


def _picture(path: str | None, where: str) -> str:
    if path is None:
        raise TaskFileError(f"{where}: a step has neither observation nor screenshot")
    try:
        return f"screenshot {hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
    except OSError as error:
        raise TaskFileError(f"{where}: cannot read the screenshot {path}: {error}") from error


def _make(name: str, split: Split, goal: str, steps: list[dict[str, Any]]) -> Task:
    return Task(
        id=f"web-offline/{name}",
        family="web-offline",
        env="palestra/WebOffline-v0",
        split=split,
        instruction=goal,
        data={"steps": steps},
        budget=Budget(turns=len(steps) + 30),
    )
