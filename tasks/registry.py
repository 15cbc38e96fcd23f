"""Task sets by name.

    load_tasks("sql-tiny")                          a registered name
    load_tasks("sql-tiny?tasks=200", split="dev")   with parameters for its function
    load_tasks("acme.tasks:invoices")               a function returning a TaskSet, by dotted path
    load_tasks("data/invoices.jsonl")               a file with one task per line, or a .json list of tasks

A source is a string, "module:function"; nothing is imported until its set is loaded. Other packages add
theirs through the entry point group `palestra.tasks` (name = "module:function").
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any
from urllib.parse import parse_qsl

import orjson

from palestra.tasks.errors import TaskError, TaskParameterError, UnknownTaskError, UnknownTaskSetError
from palestra.tasks.files import is_task_file, read_tasks
from palestra.tasks.task import SPLITS, Split, Task, TaskSet

ENTRY_POINT_GROUP = "palestra.tasks"


@dataclass(frozen=True, slots=True)
class _Source:
    entry_point: str
    description: str


_SOURCES: dict[str, _Source] = {}


def register_tasks(name: str, entry_point: str, description: str) -> None:
    """Make `load_tasks(name)` call "module:function". The last registration of a name counts."""
    if ":" not in entry_point:
        raise ValueError(
            f"entry point {entry_point!r} of task set {name!r}: write it as 'package.module:function'"
        )
    _SOURCES[name] = _Source(entry_point, description)


def registered() -> list[tuple[str, str]]:
    """(name, description) of every registered task set, sorted by name."""
    return sorted((name, source.description) for name, source in _known().items())


def load_tasks(name: str, split: Split | None = None) -> TaskSet:
    """The task set called `name`, or one split of it.

    Raises UnknownTaskSetError, TaskParameterError for "name?key=value" that does not fit, TaskFileError.
    """
    tasks = _load(name)
    if split is None:
        return tasks
    if split not in SPLITS:
        raise TaskParameterError(f"there is no split {split!r}; the splits are {', '.join(SPLITS)}")
    return tasks.split(split)


def find_task(name: str, task_id: str) -> Task:
    """One task of the set called `name`. Raises UnknownTaskError, and what `load_tasks` raises."""
    tasks = load_tasks(name)
    task = tasks.get(task_id)
    if task is None:
        hint = _did_you_mean(task_id, (t.id for t in tasks))
        raise UnknownTaskError(f"task set {name!r} has no task {task_id!r} among its {len(tasks)}{hint}")
    return task


def import_function(entry_point: str) -> Callable[..., Any]:
    """The function that "package.module:function" names. Raises TaskError saying what is missing."""
    module_name, _, attribute = entry_point.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise TaskError(f"cannot import {entry_point!r}: {error}") from error
    if not callable(function):
        raise TaskError(f"{entry_point!r} is not a function but {function!r}")
    return function  # type: ignore[no-any-return]


def _load(name: str) -> TaskSet:
    base, _, query = name.partition("?")
    known = _known()
    if base in known:
        return _call(known[base].entry_point, base, query)
    if is_task_file(base):
        return read_tasks(base)
    if ":" in base:
        return _call(base, base, query)
    hint = _did_you_mean(base, known)
    raise UnknownTaskSetError(
        f"there is no task set {base!r}{hint or '.'} Registered: {', '.join(sorted(known))}. "
        "A .json or .jsonl file or 'package.module:function' works too."
    )


def _known() -> dict[str, _Source]:
    plugins = {
        p.name: _Source(p.value, f"from {p.dist.name if p.dist else p.module}")
        for p in entry_points(group=ENTRY_POINT_GROUP)
    }
    return plugins | _SOURCES


def _call(entry_point: str, name: str, query: str) -> TaskSet:
    function = import_function(entry_point)
    parameters = {key: _value(text) for key, text in parse_qsl(query, keep_blank_values=True)}
    signature = inspect.signature(function)
    try:
        signature.bind(**parameters)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "none"
        raise TaskParameterError(f"task set {name!r}: {error}; its parameters are: {takes}") from error
    tasks = function(**parameters)
    if not isinstance(tasks, TaskSet):
        raise TaskError(f"{entry_point!r} must return a TaskSet, it returned {type(tasks).__name__}")
    return tasks


def _value(text: str) -> Any:
    """A parameter as JSON where it is JSON (200, 0.5, true), else the text itself."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _did_you_mean(wrong: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.5)
    return f". Did you mean {close[0]!r}?" if close else ""


register_tasks(
    "sql-tiny", "palestra.tasks.sql.tiny:load", "small generated SQL lookups for first tries on a CPU"
)
register_tasks("sql-gym", "palestra.tasks.sql.gym.pack:load", "generated SQL questions, split by database")
register_tasks("spider", "palestra.tasks.sql.loaders:load_spider", "Spider; parameters: path, db_root")
register_tasks("bird", "palestra.tasks.sql.loaders:load_bird", "BIRD; parameters: path, db_root")
register_tasks("spider2", "palestra.tasks.sql.loaders:load_spider2", "Spider 2.0-lite; also gold_dir")
register_tasks("sql-gym-kinds", "palestra.tasks.sql.gym.pack:load_by_kind", "the same, split by kind")
register_tasks(
    "gymnasium", "palestra.tasks.gymnasium_seeds:load", "seeds of a Gymnasium environment; parameter: id"
)
register_tasks(
    "frozen-lake", "palestra.tasks.gymnasium_seeds:load_frozen_lake", "FrozenLake, a new map for every task"
)
register_tasks(
    "textworld", "palestra.tasks.text_worlds:load_textworld", "generated TextWorld games, split by seed"
)
register_tasks(
    "textworld-kinds", "palestra.tasks.text_worlds:load_textworld_kinds", "the same, split by kind of quest"
)
register_tasks("alfworld", "palestra.tasks.text_worlds:load_alfworld", "ALFWorld games; parameter: path")
register_tasks(
    "scienceworld", "palestra.tasks.text_worlds:load_scienceworld", "ScienceWorld, with its official splits"
)
register_tasks(
    "search-hops", "palestra.tasks.search.hops.pack:load", "generated multi-hop questions, split by world"
)
register_tasks(
    "search-hops-adaptive",
    "palestra.tasks.search.hops.pack:load_adaptive",
    "the same for AdaptiveSearch-v0: some questions need no search",
)
register_tasks(
    "hotpotqa", "palestra.tasks.search.questions:load_hotpotqa", "HotpotQA; parameters: path, corpus"
)
register_tasks(
    "2wiki", "palestra.tasks.search.questions:load_2wiki", "2WikiMultihopQA; parameters: path, corpus"
)
register_tasks("musique", "palestra.tasks.search.questions:load_musique", "MuSiQue; parameters: path, corpus")
register_tasks(
    "search-r1", "palestra.tasks.search.questions:load_search_r1", "questions of Search-R1; path, corpus"
)
register_tasks(
    "beir", "palestra.tasks.search.questions:load_beir", "BEIR: find the passages; parameters: path, corpus"
)
register_tasks("swe-tiny", "palestra.tasks.swe.tiny:load", "planted bugs in small packages, split by package")
register_tasks(
    "swebench", "palestra.tasks.swe.swebench:load_swebench", "SWE-bench; parameters: path, repo_root"
)
register_tasks("swebench-pro", "palestra.tasks.swe.swebench:load_pro", "SWE-bench Pro; also needs repo_root")
register_tasks("multi-swe-bench", "palestra.tasks.swe.swebench:load_multi_swebench", "Multi-SWE-bench; path")
register_tasks(
    "quixbugs", "palestra.tasks.swe.benchmarks:load_quixbugs", "QuixBugs; parameter: path of a clone"
)
register_tasks(
    "bugsinpy", "palestra.tasks.swe.benchmarks:load_bugsinpy", "BugsInPy; parameters: path, repo_root"
)
register_tasks("harbor", "palestra.tasks.swe.benchmarks:load_harbor", "Harbor task folders; parameter: path")
register_tasks(
    "swe-releases", "palestra.tasks.swe.releases:load", "changes between releases of PyPI packages"
)
register_tasks(
    "web-sites", "palestra.tasks.web.sites.build:load", "generated tasks on a shop, a forum and a desk"
)
register_tasks(
    "miniwob", "palestra.tasks.web.miniwob:load", "MiniWoB++, split by seed; parameters: only, train"
)
register_tasks("miniwob-tasks", "palestra.tasks.web.miniwob:load_by_page", "MiniWoB++, split by page")
register_tasks("web-offline", "palestra.tasks.web.offline:load", "recorded GUI steps; path (UI-S1), split")
register_tasks(
    "webarena", "palestra.tasks.web.loaders:load_webarena", "WebArena; path, shopping=http://..., ..."
)
