"""From kinds of tasks to tasks. A kind is a function of the site's state that returns a `Goal`.

What a goal changes is written as SQL on the site's database. Grading runs that SQL on a fresh copy of the initial
state and compares: the database that the agent leaves must be the same, row by row, so that a change beside the
goal counts as much as a missing one.
"""

from __future__ import annotations

import functools
import importlib
import random
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palestra.tasks.task import SPLITS, Budget, Split, Task, TaskSet

SITES = ("shop", "forum", "desk")
SEEDS: dict[Split, Sequence[int]] = {"train": range(8), "dev": range(100, 102), "test": range(200, 204)}
_BUDGET = Budget(turns=40, tokens=65_536, wall_s=600, command_s=20)


@dataclass(frozen=True, slots=True)
class Goal:
    """One task on one state of a site."""

    instruction: str
    gold: Sequence[str]
    """Actions that reach it."""
    sql: Sequence[str] = ()
    """What it changes."""
    answer: str | None = None
    """What has to be handed in, where the task is a question."""
    near_misses: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Actions that come close, by what is wrong with them."""
    user: str = "robin"


Kind = Callable[[sqlite3.Connection, random.Random], Goal]


def image(schema: str, rows: Mapping[str, Iterable[Sequence[Any]]]) -> bytes:
    """A SQLite image with `rows` by table."""
    connection = sqlite3.connect(":memory:")
    connection.executescript(schema)
    for table, values in rows.items():
        for row in values:
            slots = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} VALUES ({slots})", row)
    connection.commit()
    return connection.serialize()


@functools.lru_cache(maxsize=256)
def initial(site: str, seed: int) -> bytes:
    """The SQLite image that episodes of `site` with this seed begin with. Raises ValueError for no such site."""
    if site not in SITES:
        raise ValueError(f"there is no site {site!r}; there are {', '.join(SITES)}")
    built: bytes = importlib.import_module(f"palestra.tasks.web.sites.{site}").build(seed)
    return built


def opened(state: bytes) -> sqlite3.Connection:
    """A private database in memory with this state."""
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    connection.deserialize(state)
    return connection


@functools.cache
def load(only: str = "") -> TaskSet:
    """`web-sites`: every kind of every site, or of the sites named in `only`, by seeds that splits do not share."""
    chosen = [s for s in SITES if not only or s in only.split(",")]
    tasks = [
        task
        for split in SPLITS
        for site in chosen
        for seed in SEEDS[split]
        for task in _tasks(site, split, seed)
    ]
    return TaskSet("web-sites", tasks)


def _tasks(site: str, split: Split, seed: int) -> Iterable[Task]:
    kinds: Mapping[str, Kind] = importlib.import_module(f"palestra.tasks.web.sites.{site}").KINDS
    for name, kind in kinds.items():
        goal = kind(opened(initial(site, seed)), random.Random(f"{site}/{name}/{seed}"))
        yield Task(
            id=f"{site}/{name}/{seed:03d}",
            family="web",
            env="palestra/Web-v0",
            split=split,
            instruction=goal.instruction,
            data={
                "site": site,
                "seed": seed,
                "user": goal.user,
                "kind": f"{site}/{name}",
                "gold_sql": list(goal.sql),
                "answer": goal.answer,
                "gold": list(goal.gold),
                "near_misses": {k: list(v) for k, v in goal.near_misses.items()},
            },
            budget=_BUDGET,
        )


def text(value: str) -> str:
    """A SQL string literal."""
    return "'" + value.replace("'", "''") + "'"


def one(connection: sqlite3.Connection, sql: str, *values: Any) -> Any:
    """The first column of the first row."""
    row = connection.execute(sql, values).fetchone()
    return None if row is None else row[0]


def rows(connection: sqlite3.Connection, sql: str, *values: Any) -> list[Any]:
    """All rows; of a single column, its values."""
    found = connection.execute(sql, values).fetchall()
    return [r[0] if len(r) == 1 else r for r in found]
