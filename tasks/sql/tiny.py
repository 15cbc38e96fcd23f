"""`sql-tiny`: questions over small databases that a policy of a third of a million parameters can learn from nothing.

Every database has a table of three columns (a label, a category, a number) and a logbook of the same shape; all
names come from one vocabulary. A question never names the table or a column, so an agent has to look twice before it
can answer. The databases of dev and test combine names in ways that no training database does.

    tables     lamp, log
    question   Which one is at the top?
    gold       SELECT title FROM lamp ORDER BY price DESC LIMIT 1
"""

from __future__ import annotations

import functools
import random
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from palestra.tasks.sql import vocabulary as words
from palestra.tasks.task import SPLITS, Budget, Split, Task, TaskSet

KINDS: dict[str, tuple[str, str]] = {
    "total": ("What do all add up to?", "SELECT SUM({number}) FROM {table}"),
    "count": ("How many are {value}?", "SELECT COUNT(*) FROM {table} WHERE {category} = '{value}'"),
    "distinct": ("How many kinds are there?", "SELECT COUNT(DISTINCT {category}) FROM {table}"),
    "highest": ("Which one is at the top?", "SELECT {label} FROM {table} ORDER BY {number} DESC LIMIT 1"),
    "lookup": ("What number has {name}?", "SELECT {number} FROM {table} WHERE {label} = '{name}'"),
    "average": (
        "What is the average of the {value} ones?",
        "SELECT AVG({number}) FROM {table} WHERE {category} = '{value}'",
    ),
}
"""Question and gold SQL by kind."""

DATABASES: dict[Split, int] = {"train": 600, "dev": 40, "test": 80}
_SEEDS: dict[Split, int] = {"train": 1_000_000, "dev": 2_000_000, "test": 3_000_000}
_BUDGET = Budget(turns=8, tokens=2048, wall_s=120, command_s=1.0)


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its names, and rows of (label, category, number) with distinct labels and numbers."""

    name: str
    label: str
    category: str
    number: str
    rows: tuple[tuple[str, str, int], ...]

    @property
    def names(self) -> tuple[str, str, str, str]:
        """What no database of another split shares."""
        return self.name, self.label, self.category, self.number


def tables(seed: int) -> tuple[Table, Table]:
    """The table that questions are about in database `seed`, and its logbook."""
    rng = random.Random(seed)
    names = rng.choice(words.TABLES), rng.choice(words.LOGBOOKS)
    pools = (words.LABELS, words.CATEGORIES, words.NUMBERS)
    labels, categories, numbers = (rng.sample(pool, 2) for pool in pools)
    subject, logbook = (
        Table(names[i], labels[i], categories[i], numbers[i], tuple(_rows(rng))) for i in range(2)
    )
    return subject, logbook


def build(seed: int) -> bytes:
    """The SQLite image of database `seed`."""
    connection = sqlite3.connect(":memory:")
    for t in tables(seed):
        connection.execute(f"CREATE TABLE {t.name} ({t.label} TEXT, {t.category} TEXT, {t.number} INTEGER)")
        connection.executemany(f"INSERT INTO {t.name} VALUES (?, ?, ?)", t.rows)
    connection.commit()
    return connection.serialize()


@functools.cache
def load() -> TaskSet:
    """One task per database and kind; databases of dev and test whose names occur in training are left out."""
    seen = {tables(seed)[0].names for seed in _seeds("train")}
    all_tasks: list[Task] = []
    for split in SPLITS:
        for seed in _seeds(split):
            if split == "train" or tables(seed)[0].names not in seen:
                all_tasks.extend(_tasks(split, seed))
    return TaskSet("sql-tiny", all_tasks)


def _seeds(split: Split) -> range:
    return range(_SEEDS[split], _SEEDS[split] + DATABASES[split])


def _rows(rng: random.Random) -> Iterator[tuple[str, str, int]]:
    count = rng.randint(8, 14)
    values = rng.sample(words.VALUES, count + 4)
    for name, number in zip(values[4:], rng.sample(range(1, 100), count), strict=True):
        yield name, rng.choice(values[:4]), number


def _tasks(split: Split, seed: int) -> Iterator[Task]:
    rng = random.Random(seed + 1)
    t, _ = tables(seed)
    for kind, (question, gold) in KINDS.items():
        row = rng.choice(t.rows)
        slots = {"table": t.name, "label": t.label, "category": t.category, "number": t.number}
        slots |= {"name": row[0], "value": row[1]}
        yield Task(
            id=f"sql-tiny/{split}/{seed - _SEEDS[split]:04d}/{kind}",
            family="sql",
            env="palestra/Sql-v0",
            split=split,
            instruction=question.format(**slots),
            data={
                "database": {"builder": "palestra.tasks.sql.tiny:build", "args": {"seed": seed}},
                "db_id": f"tiny-{seed}",
                "gold_sql": gold.format(**slots),
                "kind": kind,
            },
            budget=_BUDGET,
        )
