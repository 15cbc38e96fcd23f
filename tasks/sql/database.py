"""The database of a task, as a SQLite image in memory.

A task names it in its data, in one of two ways:

    {"database": {"file": "path/to/some.sqlite"}, ...}
    {"database": {"builder": "package.module:function", "args": {"seed": 1}}, ...}

A file is only ever read; a relative path counts from the working directory. With `"backend": "duckdb"` or `"postgres"`
SQL runs there instead of in SQLite (`backends.py`). A builder returns the image as bytes, the same bytes for the same
arguments. Task data cannot call arbitrary functions: a builder lives in `palestra.tasks.sql` or is marked
`@database_builder`. Images are cached up to `CACHE_BYTES`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from palestra.tasks.errors import DatabaseError, TaskError
from palestra.tasks.registry import import_function
from palestra.tasks.sql.cache import ByteCache
from palestra.tasks.sql.schema import Table, read_schema
from palestra.tasks.task import Task

CACHE_BYTES = 512 * 2**20
_OWN_BUILDERS = "palestra.tasks.sql."

Builder = TypeVar("Builder", bound=Callable[..., bytes])


@dataclass(frozen=True, slots=True, eq=False)
class Database:
    """A checked SQLite image and its schema."""

    key: bytes
    """Names the database: equal keys, equal images."""
    image: bytes
    tables: Mapping[str, Table]
    backend: str = "sqlite"
    """Where its SQL runs: sqlite, duckdb or postgres (`backends.py`)."""


def database_builder(function: Builder) -> Builder:
    """Mark a function of another package as one that tasks may name to build their database."""
    function.__palestra_builder__ = True  # type: ignore[attr-defined]
    return function


def database_bytes(task: Task) -> bytes:
    """The SQLite image of the task's database. Raises DatabaseError."""
    return database(task).image


def database(task: Task) -> Database:
    """The task's database, from the cache where it is there. Raises DatabaseError naming path or builder."""
    source = task.data.get("database")
    if not isinstance(source, Mapping) or ("file" in source) == ("builder" in source):
        raise DatabaseError(
            f"task {task.id!r}: data['database'] must be {{'file': path}} or {{'builder': 'module:function', "
            f"'args': {{...}}}}, got {source!r}"
        )
    key = orjson.dumps([source, _file_version(source)], option=orjson.OPT_SORT_KEYS)
    return _CACHE.get(key, lambda: _make(key, source))


def connect(image: bytes) -> sqlite3.Connection:
    """A plain in-memory connection to a private copy of `image`. Not for SQL of agents: see `guarded.py`."""
    connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
    connection.text_factory = _decode
    connection.deserialize(image)
    return connection


_CACHE: ByteCache[Database] = ByteCache(CACHE_BYTES, lambda made: len(made.image))


def _decode(raw: bytes) -> str:
    """Text as it is stored; benchmark databases hold some that is not UTF-8."""
    return raw.decode("utf-8", "replace")


def _file_version(source: Mapping[str, Any]) -> list[int]:
    if "file" not in source:
        return []
    try:
        stat = Path(source["file"]).stat()
    except OSError as error:
        raise DatabaseError(f"database file {source['file']} cannot be opened: {error.strerror}") from error
    return [stat.st_mtime_ns, stat.st_size]


def _make(key: bytes, source: Mapping[str, Any]) -> Database:
    if "file" in source:
        image, what = _read(Path(source["file"])), f"database file {source['file']}"
    else:
        image, what = (
            _build(source["builder"], source.get("args", {})),
            f"database builder {source['builder']}",
        )
    return Database(key, image, _check(image, what), str(source.get("backend", "sqlite")))


def _read(path: Path) -> bytes:
    """The image of a file. A write-ahead log beside it is honoured; without one the file is not locked."""
    log = path.with_name(path.name + "-wal")
    immutable = "" if log.exists() and log.stat().st_size else "&immutable=1"
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro{immutable}", uri=True)
        ) as connection:
            connection.execute("SELECT COUNT(*) FROM sqlite_schema")  # serialize() does not say what is wrong
            image = connection.serialize()
    except (sqlite3.Error, OSError) as error:
        raise DatabaseError(f"database file {path} cannot be read: {error}") from error
    # An image in WAL mode (bytes 18 and 19 are 2) cannot be opened in memory; https://sqlite.org/fileformat.html
    return image[:18] + b"\x01\x01" + image[20:]


def _build(entry_point: str, arguments: Mapping[str, Any]) -> bytes:
    try:
        function = import_function(entry_point)
    except TaskError as error:
        raise DatabaseError(f"database builder {entry_point}: {error}") from error
    if not (entry_point.startswith(_OWN_BUILDERS) or getattr(function, "__palestra_builder__", False)):
        raise DatabaseError(f"{entry_point} may not build databases: mark it with @database_builder")
    image = function(**arguments)
    if not isinstance(image, bytes):
        raise DatabaseError(f"database builder {entry_point} returned {type(image).__name__}, not bytes")
    return image


def _check(image: bytes, what: str) -> Mapping[str, Table]:
    try:
        with closing(connect(image)) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            tables = read_schema(connection)
    except sqlite3.Error as error:
        raise DatabaseError(f"{what} is corrupt: {error}") from error
    if verdict != "ok":
        raise DatabaseError(f"{what} is corrupt: {verdict}")
    if not tables:
        raise DatabaseError(f"{what} has no tables")
    return tables
