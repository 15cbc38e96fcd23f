"""The shape of a database: tables, columns, keys; read from a connection or written by hand in packs."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `references` is (table, column) of the row it points to."""

    name: str
    type: str
    primary_key: bool = False
    not_null: bool = False
    references: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """One table or view with its columns in order."""

    name: str
    columns: tuple[Column, ...]

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Names of the primary key columns."""
        return tuple(c.name for c in self.columns if c.primary_key)

    def describe(self) -> str:
        """One line: name(column TYPE PRIMARY KEY, column TYPE -> other(column))."""
        return f"{quoted(self.name)}({', '.join(_describe(c) for c in self.columns)})"


def quoted(name: str) -> str:
    """A name as it is written in SQL: in double quotes only where it needs them."""
    return name if _PLAIN_NAME.match(name) else '"' + name.replace('"', '""') + '"'


def create_sql(table: Table) -> str:
    """The CREATE TABLE statement of a table written by hand."""
    parts = [f"{quoted(c.name)} {c.type}{' NOT NULL' if c.not_null else ''}" for c in table.columns]
    parts.append(f"PRIMARY KEY ({', '.join(map(quoted, table.primary_key))})")
    for column in table.columns:
        if column.references is not None:
            other, key = map(quoted, column.references)
            parts.append(f"FOREIGN KEY ({quoted(column.name)}) REFERENCES {other}({key})")
    return f"CREATE TABLE {quoted(table.name)} ({', '.join(parts)})"


def read_schema(connection: sqlite3.Connection) -> Mapping[str, Table]:
    """All tables and views by name, sorted, without SQLite's own."""
    sql = (
        "SELECT name FROM sqlite_schema "
        "WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    names = sorted(str(name) for (name,) in connection.execute(sql))
    return {name: _read_table(connection, name) for name in names}


def _read_table(connection: sqlite3.Connection, name: str) -> Table:
    keys = {}
    for row in connection.execute("SELECT * FROM pragma_foreign_key_list(?)", (name,)):
        keys[row[3].lower()] = (row[2], row[4] or row[3])
    columns = connection.execute('SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?)', (name,))
    return Table(
        name,
        tuple(Column(n, t.upper(), bool(pk), bool(nn), keys.get(n.lower())) for n, t, nn, pk in columns),
    )


def _describe(column: Column) -> str:
    parts = [quoted(column.name), column.type]
    if column.primary_key:
        parts.append("PRIMARY KEY")
    if column.references is not None:
        parts.append(f"-> {quoted(column.references[0])}({quoted(column.references[1])})")
    return " ".join(p for p in parts if p)
