"""Benchmark files of the web world. The sites of WebArena are not among them: users host those themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from palestra.tasks.errors import TaskFileError, TaskParameterError
from palestra.tasks.files import read_json
from palestra.tasks.task import Budget, Task, TaskSet

PLACES = ("shopping", "shopping_admin", "gitlab", "map", "reddit", "wikipedia", "homepage")
_BUDGET = Budget(turns=30, tokens=131_072, wall_s=1800, command_s=60)


def load_webarena(path: str, **places: str) -> TaskSet:
    """WebArena's task file (config_files/test.raw.json); `places`: addresses by site, shopping=http://host:7770.

    Tasks on sites without an address are left out. Raises TaskFileError, TaskParameterError.
    """
    unknown = sorted(set(places) - set(PLACES))
    if unknown:
        raise TaskParameterError(f"WebArena has no site {unknown[0]!r}; it has {', '.join(PLACES)}")
    records = read_json(path)
    if not isinstance(records, list):
        raise TaskFileError(f"{path} must hold a list, not a {type(records).__name__}")
    tasks = [_webarena(record, f"{path}, item {i}", places) for i, record in enumerate(records)]
    return TaskSet("webarena", [task for task in tasks if task is not None])


def _webarena(record: Any, where: str, places: Mapping[str, str]) -> Task | None:
    try:
        sites = record["sites"]
        if not set(sites) <= set(places):
            return None
        filled = _fill({"start_url": record["start_url"], "eval": record["eval"]}, places)
        hosts = {urlsplit(places[s]).netloc: _origin(places[s]) for s in sites}
        return Task(
            id=f"webarena/{record['task_id']}",
            family="web",
            env="palestra/Web-v0",
            split="test",
            instruction=record["intent"],
            data={"webarena": {**filled, "sites": hosts}, "kind": "+".join(sites)},
            budget=_BUDGET,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise TaskFileError(f"{where}: {type(error).__name__}: {error}") from error


def _fill(value: Any, places: Mapping[str, str]) -> Any:
    """Put addresses for __SHOPPING__ and the like, in every text of `value`; the browser sees http."""
    if isinstance(value, str):
        return re.sub(r"__([A-Z_]+)__", lambda m: _seen(places.get(m[1].lower(), m[0])), value)
    if isinstance(value, list):
        return [_fill(one, places) for one in value]
    if isinstance(value, dict):
        return {key: _fill(one, places) for key, one in value.items()}
    return value


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _seen(url: str) -> str:
    """The address as the browser knows it: plain http, whatever the server speaks."""
    return re.sub(r"^https://", "http://", url.rstrip("/"))
