"""Where the SQL of agents runs: SQLite, DuckDB or PostgreSQL, each guarded in its own way.

A task's database says which: {"file": "shop.sqlite", "backend": "duckdb"}. Whatever the backend, the data is a SQLite
image (`database.py`), which the others load. Types follow the values that a column holds, not what it was declared as:
whole numbers, floats, bytes, else text (dates stay text).
"""

from __future__ import annotations

import csv
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from palestra.tasks.errors import DatabaseError
from palestra.tasks.sql.database import Database, connect
from palestra.tasks.sql.guarded import GuardedDatabase, Limits, Result, Value
from palestra.tasks.sql.schema import Table, quoted

Kind = Literal["integer", "real", "blob", "text"]
NULL = "\\N"
"""How a missing value is written in CSV files."""


class Guarded(Protocol):
    """A private database on which any SQL text can be run and do no harm."""

    def query(self, sql: str) -> Result:
        """Run one SELECT. Raises QueryError with a short reason, QueryLimitError at a bound."""
        ...

    def close(self) -> None:
        """Release it. Calling it twice is fine."""
        ...


def open_guarded(database: Database, limits: Limits) -> Guarded:
    """A private copy on the backend of `database`. Raises DatabaseError where that cannot be had."""
    if database.backend == "sqlite":
        return GuardedDatabase(database, limits)
    if database.backend == "duckdb":
        from palestra.tasks.sql.duckdb_guarded import GuardedDuckDB

        return GuardedDuckDB(database, limits)
    if database.backend == "postgres":
        from palestra.tasks.sql.postgres_guarded import GuardedPostgres

        return GuardedPostgres(database, limits)
    raise DatabaseError(f"there is no backend {database.backend!r}; there are sqlite, duckdb and postgres")


def columns_of(connection: sqlite3.Connection, table: Table) -> list[tuple[str, Kind]]:
    """(name, kind) of each column, by the values that are there."""
    return [(column.name, _kind(connection, table.name, column.name)) for column in table.columns]


def write_csv(
    connection: sqlite3.Connection, table: Table, file: Path | IO[str], blob: Callable[[bytes], str]
) -> None:
    """All rows of a table, without a header; `blob` writes bytes as the backend reads them."""
    if isinstance(file, Path):
        with file.open("w", newline="", encoding="utf-8") as opened:
            write_csv(connection, table, opened, blob)
        return
    rows = connection.execute(f"SELECT * FROM {quoted(table.name)}")
    cells = ([NULL if v is None else blob(v) if isinstance(v, bytes) else v for v in row] for row in rows)
    csv.writer(file, lineterminator="\n").writerows(cells)


def base_tables(database: Database) -> Iterator[Table]:
    """The tables of a database that are no views."""
    with closing(connect(database.image)) as connection:
        names = {n for (n,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    yield from (table for name, table in database.tables.items() if name in names)


def plain_value(value: Any) -> Value:
    """A value of a driver as one of SQLite's kinds: booleans are 0 and 1, decimals numbers, dates text."""
    if value is None or type(value) in (int, float, str, bytes):
        return value  # type: ignore[no-any-return]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal):
        return (
            int(value)
            if value == value.to_integral_value() and value.as_tuple().exponent == 0
            else float(value)
        )
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return str(value)


def bounded(columns: Sequence[str], fetched: Iterator[Sequence[Any]], limits: Limits) -> Result:
    """The first rows, within the bounds on rows and bytes."""
    rows: list[tuple[Value, ...]] = []
    room_bytes = limits.result_bytes
    for raw in fetched:
        row = tuple(plain_value(value) for value in raw)
        room_bytes -= sum(len(v) if isinstance(v, str | bytes) else 8 for v in row)
        if len(rows) == limits.rows or room_bytes < 0:
            return Result(tuple(columns), rows, complete=False)
        rows.append(row)
    return Result(tuple(columns), rows, complete=True)


def _kind(connection: sqlite3.Connection, table: str, column: str) -> Kind:
    found = {
        str(kind)
        for (kind,) in connection.execute(f"SELECT DISTINCT typeof({quoted(column)}) FROM {quoted(table)}")
    } - {"null"}
    if found <= {"integer"} and found:
        return "integer"
    if found <= {"integer", "real"} and found:
        return "real"
    return "blob" if found == {"blob"} else "text"
