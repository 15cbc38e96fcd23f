"""`sql-tiny`: questions over small databases that a policy of half a million parameters can learn from nothing.

Every database has two tables of three columns (a label, a category, a number); all names come from one vocabulary.
A question says what a table is about, never its full name or a column, so an agent has to look twice before it can
answer. The databases of dev and test combine names in ways that no training database does.

    question   Which lamp is at the top?
    gold       SELECT title FROM lamp_east ORDER BY price DESC LIMIT 1
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

from palestra.tasks.task import SPLITS, Budget, Split, Task, TaskSet

THINGS = (
    "lamp book boat coin drum farm goat hall iron kite lens mill nest oven pond quay rose seed tent vase "
    "wolf yard barn card door fish gate horn lake moth"
).split()
PLACES = "east west north south main old new spare upper lower".split()
LABELS = "title label code alias tag mark".split()
CATEGORIES = (
    "color shape brand class owner grade state style theme genre phase voice wood metal fabric scent".split()
)
NUMBERS = (
    "price weight size age stock rank speed depth power score yield width pages floor seats visits".split()
)
VALUES = (
    "amber basil cedar dusk ember flint glass hazel ivory jade khaki linen maple navy olive pearl quartz ruby "
    "slate topaz umber violet wheat xenon yellow zinc birch coral delta frost"
).split()
WORDS = tuple(dict.fromkeys([*THINGS, *PLACES, *LABELS, *CATEGORIES, *NUMBERS, *VALUES]))
"""Everything that varies between databases. A tokenizer for this pack gives each word one token."""

KINDS: dict[str, tuple[str, str]] = {
    "total": ("What do all {thing} add up to?", "SELECT SUM({number}) FROM {table}"),
    "count": (
        "How many {thing} are {value}?",
        "SELECT COUNT(*) FROM {table} WHERE {category} = '{value}'",
    ),
    "distinct": ("How many kinds of {thing} are there?", "SELECT COUNT(DISTINCT {category}) FROM {table}"),
    "highest": (
        "Which {thing} is at the top?",
        "SELECT {label} FROM {table} ORDER BY {number} DESC LIMIT 1",
    ),
    "lookup": (
        "What number has {thing} {name}?",
        "SELECT {number} FROM {table} WHERE {label} = '{name}'",
    ),
    "average": (
        "What is the average of {value} {thing}?",
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

    thing: str
    place: str
    label: str
    category: str
    number: str
    rows: tuple[tuple[str, str, int], ...]

    @property
    def name(self) -> str:
        """For example lamp_east."""
        return f"{self.thing}_{self.place}"

    @property
    def schema(self) -> tuple[str, str, str, str]:
        """The names of this table and its columns."""
        return self.name, self.label, self.category, self.number


def tables(seed: int) -> tuple[Table, Table]:
    """The two tables of database `seed`."""
    rng = random.Random(seed)
    names = [rng.sample(pool, 2) for pool in (THINGS, PLACES, LABELS, CATEGORIES, NUMBERS)]
    first, second = (Table(*[pair[i] for pair in names], tuple(_rows(rng))) for i in range(2))
    return first, second


def build(seed: int) -> bytes:
    """The SQLite image of database `seed`."""
    connection = sqlite3.connect(":memory:")
    for t in tables(seed):
        connection.execute(f"CREATE TABLE {t.name} ({t.label} TEXT, {t.category} TEXT, {t.number} INTEGER)")
        connection.executemany(f"INSERT INTO {t.name} VALUES (?, ?, ?)", t.rows)
    connection.commit()
    return connection.serialize()


def load() -> TaskSet:
    """One task per database and kind: 6 * (600 train + 40 dev + 80 test)."""
    seen = {t.schema for seed in _seeds("train") for t in tables(seed)}
    all_tasks: list[Task] = []
    for split in SPLITS:
        for seed in _seeds(split):
            if split == "train" or not seen & {t.schema for t in tables(seed)}:
                all_tasks.extend(_tasks(split, seed))
    return TaskSet("sql-tiny", all_tasks)


def _seeds(split: Split) -> range:
    return range(_SEEDS[split], _SEEDS[split] + DATABASES[split])


def _rows(rng: random.Random) -> Iterator[tuple[str, str, int]]:
    count = rng.randint(5, 9)
    values = rng.sample(VALUES, count + 3)
    for name, number in zip(values[3:], rng.sample(range(1, 100), count), strict=True):
        yield name, rng.choice(values[:3]), number


def _tasks(split: Split, seed: int) -> Iterator[Task]:
    rng = random.Random(seed + 1)
    for kind, (question, gold) in KINDS.items():
        t = rng.choice(tables(seed))
        row = rng.choice(t.rows)
        slots = {
            "thing": t.thing,
            "table": t.name,
            "label": t.label,
            "category": t.category,
            "number": t.number,
            "name": row[0],
            "value": row[1],
        }
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
