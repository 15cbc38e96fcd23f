"""DuckDB, guarded: a private database in memory, without files, extensions, settings or writes.

DuckDB has no authorizer. Instead one statement of type SELECT is admitted, external access (files, ATTACH, COPY,
extensions, secrets) is switched off and the configuration locked, and functions that look outside, or change from run
to run, are refused by name.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from palestra.tasks.errors import DatabaseError, QueryError, QueryLimitError
from palestra.tasks.sql.backends import NULL, base_tables, bounded, columns_of, write_csv
from palestra.tasks.sql.database import Database, connect
from palestra.tasks.sql.guarded import Limits, Result
from palestra.tasks.sql.text import words

_TYPES = {"integer": "BIGINT", "real": "DOUBLE", "blob": "BLOB", "text": "VARCHAR"}
_CSV = (
    f"AUTO_DETECT false, HEADER false, DELIM ',', QUOTE '\"', ESCAPE '\"', NULLSTR '{NULL}', NEW_LINE '\\n'"
)
_MEMORY = "256MB"
_SETTINGS = (
    "temp_directory = ''", f"memory_limit = '{_MEMORY}'", "threads = 1", "autoinstall_known_extensions = false",
    "autoload_known_extensions = false", "enable_external_access = false", "lock_configuration = true",
)  # fmt: skip
_MAX_SQL = 20_000
_BATCH = 256
_NAMES = """
    random setseed uuid gen_random_uuid uuidv4 uuidv7 now today current_date current_time current_timestamp
    get_current_time get_current_timestamp localtime localtimestamp transaction_timestamp txid_current nextval currval
    query query_table getenv glob sniff_csv which_secret version current_setting getvariable sleep_ms
    repeat lpad rpad
"""
_REFUSED = frozenset(_NAMES.split())
_REFUSED_PREFIXES = (
    "read_",
    "duckdb_",
    "pragma_",
    "parquet_",
    "sqlite_",
    "postgres_",
    "mysql_",
    "json_execute",
    "sql_",
)
_ONLY_SELECT = "only SELECT on the tables of this database is allowed"


class GuardedDuckDB:
    """See `backends.Guarded`. Use from one thread at a time."""

    def __init__(self, database: Database, limits: Limits) -> None:
        """Load the tables. Raises DatabaseError."""
        self._limits = limits
        self._tables = {name.lower() for name in database.tables}
        self._connection = _load(database)

    def query(self, sql: str) -> Result:
        """See `backends.Guarded`."""
        duckdb = _duckdb()
        self._check(duckdb, sql)
        late = threading.Event()
        timer = threading.Timer(self._limits.time_s, self._interrupt, (late,))
        timer.daemon = True
        timer.start()
        try:
            self._connection.execute("BEGIN TRANSACTION READ ONLY")
            cursor = self._connection.execute(sql)
            columns = [str(column[0]) for column in cursor.description or ()]
            return bounded(columns, _rows(cursor), self._limits)
        except duckdb.Error as error:
            raise self._explained(error, late.is_set()) from error
        finally:
            timer.cancel()
            self._rollback()

    def close(self) -> None:
        """See `backends.Guarded`."""
        self._connection.close()

    def _interrupt(self, late: threading.Event) -> None:
        late.set()
        self._connection.interrupt()

    def _rollback(self) -> None:
        """End the transaction, if the statement has not ended it by failing."""
        with contextlib.suppress(_duckdb().TransactionException):
            self._connection.rollback()

    def _check(self, duckdb: Any, sql: str) -> None:
        """Raises QueryError for what is not one harmless SELECT."""
        if len(sql) > _MAX_SQL:
            raise QueryLimitError(
                f"the statement is too long ({len(sql)} characters, {_MAX_SQL} are allowed)"
            )
        for word in words(sql):
            if (word in _REFUSED or word.startswith(_REFUSED_PREFIXES)) and word not in self._tables:
                raise QueryError(f"{word} is not allowed")
        try:
            sql.encode()
            statements = self._connection.extract_statements(sql)
        except (duckdb.Error, UnicodeEncodeError) as error:
            raise QueryError(str(error).splitlines()[0]) from error
        if not statements:
            raise QueryError("there is no SELECT statement")
        if len(statements) > 1:
            raise QueryError("one statement at a time")
        if statements[0].type != duckdb.StatementType.SELECT:
            raise QueryError(_ONLY_SELECT)

    def _explained(self, error: Exception, late: bool) -> QueryError:
        if late or "INTERRUPT" in str(error).upper():
            return QueryLimitError(f"the query took too long (it may take {self._limits.time_s:g} s)")
        text = str(error).splitlines()[0]
        if "Out of Memory" in text:
            return QueryLimitError(f"the query needs more than {_MEMORY} of memory")
        return QueryError(text)


def _load(database: Database) -> Any:
    connection = _duckdb().connect(":memory:")
    try:
        with tempfile.TemporaryDirectory() as folder, closing(connect(database.image)) as source:
            for table in base_tables(database):
                path = Path(folder) / "table.csv"
                write_csv(source, table, path, _blob)
                columns = columns_of(source, table)
                definition = ", ".join(f"{_name(name)} {_TYPES[kind]}" for name, kind in columns)
                connection.execute(f"CREATE TABLE {_name(table.name)} ({definition})")
                connection.execute(f"COPY {_name(table.name)} FROM '{path}' ({_CSV})")
        for setting in _SETTINGS:
            connection.execute(f"SET {setting}")
    except _duckdb().Error as error:
        connection.close()
        raise DatabaseError(f"the database cannot be loaded into DuckDB: {error}") from error
    return connection


def _blob(value: bytes) -> str:
    return "".join(f"\\x{byte:02X}" for byte in value)


def _rows(cursor: Any) -> Iterator[Any]:
    while batch := cursor.fetchmany(_BATCH):
        yield from batch


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if not re.fullmatch(r"\w+", name) else f'"{name}"'


def _duckdb() -> Any:
    try:
        import duckdb
    except ImportError as error:
        raise DatabaseError(f"DuckDB is not installed: pip install 'palestra[sql]' ({error})") from error
    return duckdb
