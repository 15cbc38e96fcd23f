"""A connection on which any SQL text can be run and do no harm: the agent's in an episode, and in grading.

It works on a private copy in memory. SQLite's authorizer admits reading the tables of the database and
calling the functions listed here, and nothing else: no ATTACH, PRAGMA, VACUUM INTO, writes, temporary tables
or extensions. Work is bounded in virtual machine steps (the same on every machine) and in seconds, results in
rows and bytes. What differs from run to run is refused: random(), the current time, local time zones. The
schema (sqlite_master) may be read: every SQLite client can, and it holds no answer to a question about the
data.

It does not isolate memory or CPU of the process: one call of a built-in function on long strings cannot be
interrupted, which is why values are bounded too.
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from palestra.tasks.errors import QueryError, QueryLimitError
from palestra.tasks.sql.database import Database, connect

Value = None | int | float | str | bytes

_FUNCTIONS = """
    -> ->> abs acos acosh asin asinh atan atan2 atanh avg ceil ceiling char coalesce concat concat_ws cos cosh
    count cume_dist date datetime degrees dense_rank exp first_value floor format glob group_concat hex if
    ifnull iif instr json json_array json_array_length json_extract
    json_object json_quote json_type json_valid julianday lag last_value lead length like likelihood likely
    ln log log10 log2 lower ltrim max min mod nth_value ntile nullif octet_length percent_rank pi pow power
    printf quote radians rank replace round row_number rtrim sign sin sinh soundex sqrt strftime string_agg
    substr substring subtype sum tan tanh time total trim trunc typeof unhex unicode unixepoch unlikely upper
"""
FUNCTIONS = frozenset(_FUNCTIONS.split())
_DATE_FUNCTIONS = ("date", "time", "datetime", "julianday", "strftime", "unixepoch")
_UNSTEADY = {"now", "subsec", "subsecond", "localtime", "utc"}
_PLAIN = sqlite3.connect(":memory:", check_same_thread=False)
_SCHEMA_TABLES = {"sqlite_master", "sqlite_schema"}
_PROGRESS_STEPS = 500
_SQL_BYTES = 20_000
_ONLY_SELECT = "only SELECT on the tables of this database is allowed"


STEPS_PER_SECOND = 20_000_000
"""About a sixth of what an idle core does."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one statement."""

    time_s: float = 10.0
    vm_steps: int = 200_000_000
    """Instructions of SQLite's virtual machine."""
    rows: int = 10_000
    result_bytes: int = 1_000_000
    value_bytes: int = 100_000

    @classmethod
    def lasting(cls, time_s: float, **others: int) -> Limits:
        """Bounds for `time_s` seconds, in which the work that is allowed takes a fraction of that time.

        So the bound on work is met first, and at the same place on a quick and on a loaded machine.
        """
        return cls(time_s=time_s, vm_steps=int(time_s * STEPS_PER_SECOND), **others)


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of a statement. `complete` is False where the row or byte bound cut it short."""

    columns: tuple[str, ...]
    rows: list[tuple[Value, ...]]
    complete: bool


class GuardedDatabase:
    """One private, read-only copy of a database. Use from one thread at a time; any thread will do."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self._limits = limits
        self._refused = ""
        self._ticks, self._deadline_s = 0, 0.0
        self._tables = {name.lower() for name in database.tables} | _SCHEMA_TABLES
        self._connection = connect(database.image)
        self._protect()

    def query(self, sql: str) -> Result:
        """Run one SELECT. Raises QueryError with a short reason, QueryLimitError at a bound of `limits`."""
        self._refused = ""
        self._ticks = self._limits.vm_steps // _PROGRESS_STEPS
        self._deadline_s = time.monotonic() + self._limits.time_s
        try:
            cursor = self._connection.execute(sql.rstrip("; \t\r\n"))
            if cursor.description is None:
                raise QueryError("there is no SELECT statement")
            return self._fetch(cursor)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self._explained(error) from error
        except UnicodeEncodeError as error:
            raise QueryError("the statement is not valid Unicode text") from error

    def close(self) -> None:
        """Release the copy. Calling it twice is fine."""
        self._connection.close()

    def _protect(self) -> None:
        connection = self._connection
        connection.execute("PRAGMA query_only = ON")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self._limits.value_bytes)
        connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, _SQL_BYTES)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        for name in _DATE_FUNCTIONS:
            connection.create_function(name, -1, self._date_function(name), deterministic=True)
        connection.set_progress_handler(self._tick, _PROGRESS_STEPS)
        connection.set_authorizer(self._authorize)

    def _authorize(self, action: int, first: str | None, second: str | None, _db: Any, _by: Any) -> int:
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ:
            # Counting the rows of a common table expression reads the column "" of a table of that name.
            return self._allow(second == "" or (first or "").lower() in self._tables, _ONLY_SELECT)
        if action == sqlite3.SQLITE_FUNCTION:
            return self._allow((second or "").lower() in FUNCTIONS, f"the function {second} is not allowed")
        return self._allow(False, _ONLY_SELECT)

    def _allow(self, allowed: bool, otherwise: str) -> int:
        if allowed:
            return sqlite3.SQLITE_OK
        self._refused = otherwise
        return sqlite3.SQLITE_DENY

    def _tick(self) -> bool:
        self._ticks -= 1
        return self._ticks < 0 or time.monotonic() > self._deadline_s

    def _date_function(self, name: str) -> Any:
        def call(*arguments: Value) -> Value:
            words = {str(a).strip().lower() for a in arguments}
            if len(arguments) == (name == "strftime") or words & _UNSTEADY:
                self._refused = f"{name}() of the current time or a local time zone is not allowed"
                raise ValueError(self._refused)
            return _date(name, arguments)

        return call

    def _fetch(self, cursor: sqlite3.Cursor) -> Result:
        columns = tuple(str(column[0]) for column in cursor.description)
        rows: list[tuple[Value, ...]] = []
        room_bytes = self._limits.result_bytes
        for row in cursor:
            room_bytes -= sum(_size(value) for value in row)
            if len(rows) == self._limits.rows or room_bytes < 0:
                cursor.close()
                return Result(columns, rows, complete=False)
            rows.append(row)
        return Result(columns, rows, complete=True)

    def _explained(self, error: Exception) -> QueryError:
        if self._refused:
            return QueryError(self._refused)
        text = str(error)
        if text == "interrupted":
            return QueryLimitError(f"the query took too long (it may take {self._limits.time_s:g} s)")
        if isinstance(error, sqlite3.DataError):
            return QueryLimitError(f"a value or the statement is too long ({text})")
        return QueryError(text)


def _size(value: Value) -> int:
    return len(value) if isinstance(value, str | bytes) else 8


@lru_cache(maxsize=65_536)
def _date(name: str, arguments: tuple[Value, ...]) -> Value:
    """SQLite's own date function, computed on a connection that has not overridden it."""
    (value,) = _PLAIN.execute(f"SELECT {name}({', '.join('?' * len(arguments))})", arguments).fetchone()
    return value  # type: ignore[no-any-return]
