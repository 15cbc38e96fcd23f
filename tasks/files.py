"""Tasks in files: one JSON object per line (.jsonl), or a JSON list of objects (.json)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import pydantic

from palestra.tasks.errors import TaskFileError
from palestra.tasks.task import Task, TaskSet


def is_task_file(name: str) -> bool:
    """Whether `name` looks like a path to a task file; it need not exist."""
    return name.endswith((".json", ".jsonl"))


def read_tasks(path: str | Path) -> TaskSet:
    """The tasks of a file in order, named by its stem. Raises TaskFileError naming file, line and field."""
    path = Path(path)
    tasks: dict[str, Task] = {}
    for where, record in read_records(path):
        task = _task(record, f"{path}, {where}")
        if task.id in tasks:
            raise TaskFileError(f"{path}, {where}: field 'id': {task.id!r} is used twice; ids must be unique")
        tasks[task.id] = task
    return TaskSet(path.stem, list(tasks.values()))


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> None:
    """Write tasks as .jsonl, one per line with only the fields that differ from their defaults."""
    lines = [orjson.dumps(task.model_dump(mode="json", exclude_defaults=True)) for task in tasks]
    Path(path).write_bytes(b"\n".join(lines) + b"\n")


def read_json(path: str | Path) -> Any:
    """The contents of a JSON file. Raises TaskFileError when it is missing or not JSON."""
    return _parse(read_text(path), str(path))


def read_text(path: str | Path) -> str:
    """The contents of a UTF-8 file. Raises TaskFileError when it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskFileError(f"cannot read {path}: {error}") from error


def read_records(path: Path) -> list[tuple[str, Any]]:
    """(where, value) for each line of a .jsonl file or item of a .json list; `where` is for messages."""
    if path.suffix == ".json":
        body = read_json(path)
        if not isinstance(body, list):
            raise TaskFileError(f"{path} must hold a list, not a {type(body).__name__}")
        return [(f"item {i}", record) for i, record in enumerate(body)]
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [(f"line {n}", _parse(line, f"{path}, line {n}")) for n, line in lines if line.strip()]


def _parse(text: str, where: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise TaskFileError(f"{where}: not JSON: {error}") from error


def _task(record: Any, where: str) -> Task:
    try:
        return Task.model_validate(record)
    except pydantic.ValidationError as error:
        problems = "; ".join(
            f"field {'.'.join(map(str, e['loc'])) or '(whole)'!r}: {e['msg']}" for e in error.errors()
        )
        raise TaskFileError(f"{where}: {problems}") from error
