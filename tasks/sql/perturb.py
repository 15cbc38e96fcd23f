"""Copies of a database with the same schema and other contents, on which constants and lucky answers fail.

Per table: some rows are dropped and, where their keys can be made afresh, some duplicated; within each column
values are shuffled among about half of the rows, and half of the numbers and dates are moved; now and then a
text value disappears; foreign keys are pointed at parents that still exist. What is unique in the original
stays unique, nulls stay possible only where they were. The idea is the distilled test suites of Zhong, Yu and
Klein, 2020 (arXiv:2010.02840), without their search.
"""

from __future__ import annotations

import datetime as dt
import random
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from palestra.tasks.sql.database import connect
from palestra.tasks.sql.schema import quoted

MAX_ROWS = 20_000
"""Rows kept per table, so that a copy of a large database stays quick to query."""
_CATEGORIES = 12
"""An integer column with at most this many values holds categories or flags, which are shuffled but not
moved.
"""
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?: \d{2}:\d{2}(?::\d{2})?)?\Z")

Rows = list[list[Any]]


@dataclass(frozen=True, slots=True)
class _Link:
    """A foreign key: columns of this table (by index) and of its parent (by name)."""

    own: tuple[int, ...]
    parent: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What perturbing needs to know of one table."""

    name: str
    columns: tuple[str, ...]
    primary_key: tuple[int, ...]
    integer_key: bool
    links: tuple[_Link, ...]

    @property
    def free(self) -> list[int]:
        """Indices of the columns that are no key."""
        taken = set(self.primary_key).union(*(link.own for link in self.links))
        return [i for i in range(len(self.columns)) if i not in taken]


def perturbed(image: bytes, seed: int) -> bytes:
    """A copy of the SQLite `image` with the same schema and different contents; equal seeds, equal bytes."""
    rng = random.Random(seed)
    with closing(connect(image)) as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        triggers = _set_aside_triggers(connection)
        connection.execute("BEGIN")
        for plan in _parents_first(_plans(connection)):
            _rewrite(connection, plan, rng)
        connection.execute("COMMIT")
        for sql in triggers:
            connection.execute(sql)
        return connection.serialize()


def _set_aside_triggers(connection: sqlite3.Connection) -> list[str]:
    found = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in found:
        connection.execute(f"DROP TRIGGER {quoted(name)}")
    return [sql for _, sql in found]


def _plans(connection: sqlite3.Connection) -> dict[str, _Plan]:
    sql = (
        "SELECT name FROM pragma_table_list "
        "WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    return {name.lower(): _plan(connection, name) for (name,) in sorted(connection.execute(sql))}


def _plan(connection: sqlite3.Connection, name: str) -> _Plan:
    info = connection.execute("SELECT name, type, pk FROM pragma_table_info(?)", (name,)).fetchall()
    at = {column.lower(): i for i, (column, _, _) in enumerate(info)}
    primary = tuple(i for i, (_, _, pk) in enumerate(info) if pk)
    integer = len(primary) == 1 and "INT" in info[primary[0]][1].upper()
    links: dict[int, list[tuple[str, int, str]]] = {}
    for number, _, parent, own, key, *_ in connection.execute(
        "SELECT * FROM pragma_foreign_key_list(?)", (name,)
    ):
        if own.lower() in at:
            links.setdefault(number, []).append((parent, at[own.lower()], key or ""))
    made = (_link(connection, parts) for parts in links.values())
    return _Plan(
        name, tuple(c for c, _, _ in info), primary, integer, tuple(m for m in made if m is not None)
    )


def _link(connection: sqlite3.Connection, parts: Sequence[tuple[str, int, str]]) -> _Link | None:
    """The link, with the parent's primary key where the declaration names no columns; None if it leads
    nowhere.
    """
    parent = parts[0][0]
    info = connection.execute("SELECT name, pk FROM pragma_table_info(?)", (parent,)).fetchall()
    primary = [name for name, pk in sorted(info, key=lambda c: c[1]) if pk]
    keys = tuple(key for _, _, key in parts if key) or tuple(primary)
    known = {name.lower() for name, _ in info}
    if len(keys) != len(parts) or not all(key.lower() in known for key in keys):
        return None
    return _Link(tuple(own for _, own, _ in parts), parent, keys)


def _parents_first(plans: dict[str, _Plan]) -> list[_Plan]:
    ordered: dict[str, _Plan] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in ordered or name in path or name not in plans:
            return
        for link in plans[name].links:
            visit(link.parent.lower(), (*path, name))
        ordered[name] = plans[name]

    for name in plans:
        visit(name, ())
    return list(ordered.values())


def _rewrite(connection: sqlite3.Connection, plan: _Plan, rng: random.Random) -> None:
    names = ", ".join(map(quoted, plan.columns))
    original = [list(row) for row in connection.execute(f"SELECT {names} FROM {quoted(plan.name)}")]
    unique = {i for i in plan.free if _all_differ(original, i)}
    rows = _duplicated(_dropped(original, rng), original, plan, unique, rng)
    for column in plan.free:
        _shuffle(rows, column, rng)
        _forget(rows, column, rng)
        _move(rows, column, column in unique, rng)
    for link in plan.links:
        _relink(connection, rows, plan, link, rng)
    connection.execute(f"DELETE FROM {quoted(plan.name)}")
    slots = ", ".join("?" * len(plan.columns))
    connection.executemany(f"INSERT OR IGNORE INTO {quoted(plan.name)} ({names}) VALUES ({slots})", rows)


def _all_differ(rows: Rows, column: int) -> bool:
    values = [row[column] for row in rows if row[column] is not None]
    return len(values) > 1 and len(set(values)) == len(values)


def _dropped(rows: Rows, rng: random.Random) -> Rows:
    """A random part of the rows, in order; at least two where there were two."""
    keep = max(min(2, len(rows)), round(len(rows) * rng.uniform(0.6, 0.9)))
    chosen = sorted(rng.sample(range(len(rows)), min(keep, MAX_ROWS)))
    return [list(rows[i]) for i in chosen]


def _duplicated(rows: Rows, original: Rows, plan: _Plan, unique: set[int], rng: random.Random) -> Rows:
    """Some rows again under fresh integer keys, unless a column that is unique in the original forbids it."""
    if unique or not rows or not (plan.integer_key or not plan.primary_key):
        return rows
    copies = [list(row) for row in rng.choices(rows, k=round(len(rows) * rng.uniform(0.05, 0.2)))]
    if plan.integer_key:
        key = plan.primary_key[0]
        first = max(row[key] for row in original) + 1
        for offset, row in enumerate(copies):
            row[key] = first + offset
    return rows + copies


def _shuffle(rows: Rows, column: int, rng: random.Random) -> None:
    chosen = [i for i in range(len(rows)) if rng.random() < 0.5]
    values = [rows[i][column] for i in chosen]
    rng.shuffle(values)
    for i, value in zip(chosen, values, strict=True):
        rows[i][column] = value


def _forget(rows: Rows, column: int, rng: random.Random) -> None:
    """In a third of the text columns with repeated values, let one value give way to the others."""
    values = sorted({row[column] for row in rows if isinstance(row[column], str)})
    if not 1 < len(values) < len(rows) or rng.random() > 0.34:
        return
    lost = rng.choice(values)
    others = [v for v in values if v != lost]
    for row in rows:
        if row[column] == lost:
            row[column] = rng.choice(others)


def _move(rows: Rows, column: int, unique: bool, rng: random.Random) -> None:
    """Change half of the numbers or dates of a column by up to a tenth of their range, or 60 days."""
    values = [row[column] for row in rows if row[column] is not None]
    taken = set(values)
    change = _mover(values, rng)
    if change is None:
        return
    for row in rows:
        if row[column] is None or rng.random() < 0.5:
            continue
        moved = change(row[column])
        if not (unique and moved in taken):
            row[column] = moved
            taken.add(moved)


def _mover(values: list[Any], rng: random.Random) -> Any:
    """A function that moves one value of this column, or None where its values are not to be moved."""
    if len(set(values)) < 2:
        return None
    if all(isinstance(v, str) and _DATE.match(v) for v in values):
        return lambda v: _days_later(v, rng.randint(-60, 60))
    if not all(isinstance(v, int | float) for v in values):
        return None
    low, spread = min(values), max(values) - min(values)
    if all(isinstance(v, int) for v in values):
        if len(set(values)) <= _CATEGORIES and spread <= 2 * _CATEGORIES:
            return None
        reach = max(1, spread // 10)
        return lambda v: max(low, v + rng.randint(-reach, reach))
    decimals = max(len(repr(float(v)).partition(".")[2]) for v in values)
    return lambda v: max(low, round(v + rng.uniform(-spread, spread) / 10, decimals))


def _days_later(text: str, days: int) -> str:
    try:
        return (dt.date.fromisoformat(text[:10]) + dt.timedelta(days=days)).isoformat() + text[10:]
    except (ValueError, OverflowError):
        return text


def _relink(connection: sqlite3.Connection, rows: Rows, plan: _Plan, link: _Link, rng: random.Random) -> None:
    """Point a third of the foreign keys, and all that lost their parent, at parents that exist."""
    children = [row for row in rows if None not in (row[i] for i in link.own)]
    pool = _pool(_parents(connection, rows, plan, link), {_key(row, link) for row in children}, rng)
    if not pool:
        return
    kept = set(pool)
    for row in children:
        if _key(row, link) not in kept or rng.random() < 0.33:
            for i, value in zip(link.own, rng.choice(pool), strict=True):
                row[i] = value


def _parents(connection: sqlite3.Connection, rows: Rows, plan: _Plan, link: _Link) -> Rows:
    """The keys of all parents, of which a table that points to itself holds its own."""
    if link.parent.lower() == plan.name.lower():
        at = {name.lower(): i for i, name in enumerate(plan.columns)}
        return [[row[at[key.lower()]] for key in link.keys] for row in rows]
    names = ", ".join(map(quoted, link.keys))
    return [list(key) for key in connection.execute(f"SELECT {names} FROM {quoted(link.parent)}")]


def _pool(parents: Rows, used: set[tuple[Any, ...]], rng: random.Random) -> list[tuple[Any, ...]]:
    """The parents that are to have children: most that have some now, and as many others as lose theirs."""
    alive = [tuple(key) for key in parents]
    parenting = [key for key in alive if key in used]
    childless = [key for key in alive if key not in used]
    exchanged = min(len(childless), len(parenting) // 10)
    kept = rng.sample(parenting, len(parenting) - exchanged)
    return kept + rng.sample(childless, exchanged) or alive


def _key(row: list[Any], link: _Link) -> tuple[Any, ...]:
    return tuple(row[i] for i in link.own)
