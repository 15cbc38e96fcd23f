"""The database of a task: files, builders, the cache, and what is wrong with bad ones."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from palestra.tasks.errors import DatabaseError
from palestra.tasks.sql.cache import ByteCache
from palestra.tasks.sql.database import connect, database, database_builder, database_bytes
from palestra.tasks.task import Task


def task_on(source: Any) -> Task:
    return Task.model_validate(
        {
            "id": "x",
            "family": "sql",
            "env": "palestra/Sql-v0",
            "split": "train",
            "instruction": "?",
            "data": {"database": source},
        }
    )


def make_file(path: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for sql in statements or ("CREATE TABLE t (a)", "INSERT INTO t VALUES (1)"):
            connection.execute(sql)
        connection.commit()
    return path


@database_builder
def built(rows: int = 1) -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (a)")
        connection.executemany("INSERT INTO t VALUES (?)", [(i,) for i in range(rows)])
        connection.commit()
        return connection.serialize()


def unmarked() -> bytes:
    return built()


@database_builder
def wrong() -> bytes:
    return "text"  # type: ignore[return-value]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "database_builders", sys.modules[__name__])


def values(image: bytes, sql: str = "SELECT a FROM t") -> list[Any]:
    with closing(connect(image)) as connection:
        return [row[0] for row in connection.execute(sql)]


def test_a_file_is_read_and_never_written(tmp_path: Path) -> None:
    path = make_file(tmp_path / "d.sqlite")
    before = path.read_bytes()
    assert values(database_bytes(task_on({"file": str(path)}))) == [1]
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = make_file(tmp_path / "d.sqlite")
    assert values(database_bytes(task_on({"file": str(path)}))) == [1]
    make_file(path, *(f"INSERT INTO t VALUES ({i})" for i in range(2000)))
    assert len(values(database_bytes(task_on({"file": str(path)})))) == 2001


def test_a_write_ahead_log_is_honoured(tmp_path: Path) -> None:
    path = make_file(tmp_path / "d.sqlite", "PRAGMA journal_mode=WAL", "CREATE TABLE t (a)")
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("INSERT INTO t VALUES (7)")
        writer.commit()
        assert values(database_bytes(task_on({"file": str(path)}))) == [7]


def test_a_builder_gets_its_arguments_and_is_cached() -> None:
    task = task_on({"builder": "database_builders:built", "args": {"rows": 3}})
    assert values(database_bytes(task)) == [0, 1, 2]
    assert database(task) is database(task)


def test_text_that_is_not_utf8_is_read_with_replacements(tmp_path: Path) -> None:
    path = make_file(
        tmp_path / "d.sqlite", "CREATE TABLE t (a)", "INSERT INTO t VALUES (CAST(x'41ff' AS TEXT))"
    )
    assert values(database_bytes(task_on({"file": str(path)}))) == ["A\ufffd"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (None, r"data\['database'\] must be"),
        ({}, r"data\['database'\] must be"),
        ({"file": "a", "builder": "b:c"}, r"data\['database'\] must be"),
        ({"file": "no/such.sqlite"}, "no/such.sqlite cannot be opened: No such file"),
        ({"builder": "no_such_module:f"}, "cannot import 'no_such_module:f'"),
        ({"builder": "database_builders:unmarked"}, "mark it with @database_builder"),
        ({"builder": "os:getcwd"}, "mark it with @database_builder"),
        ({"builder": "database_builders:wrong"}, "returned str, not bytes"),
    ],
)
def test_what_is_wrong_is_said(source: Any, says: str) -> None:
    with pytest.raises(DatabaseError, match=says):
        database_bytes(task_on(source))


def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(DatabaseError, match=r"d\.sqlite.*not a database"):
        database_bytes(task_on({"file": str(path)}))


def test_an_empty_file_has_no_tables(tmp_path: Path) -> None:
    path = tmp_path / "d.sqlite"
    path.touch()
    with pytest.raises(DatabaseError, match=r"d\.sqlite"):
        database_bytes(task_on({"file": str(path)}))


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
def test_a_truncated_file_is_corrupt(tmp_path: Path, keep: float) -> None:
    path = make_file(
        tmp_path / "d.sqlite",
        "CREATE TABLE t (a)",
        *(f"INSERT INTO t VALUES ('{i:0500}')" for i in range(100)),
    )
    body = path.read_bytes()
    path.write_bytes(body[: int(len(body) * keep)])
    with pytest.raises(DatabaseError, match=r"d\.sqlite"):
        database_bytes(task_on({"file": str(path)}))


def test_overwritten_pages_are_corrupt(tmp_path: Path) -> None:
    path = make_file(
        tmp_path / "d.sqlite",
        "CREATE TABLE t (a)",
        *(f"INSERT INTO t VALUES ('{i:0500}')" for i in range(100)),
    )
    body = bytearray(path.read_bytes())
    body[8192:12288] = b"\x07" * 4096
    path.write_bytes(body)
    with pytest.raises(DatabaseError, match=r"d\.sqlite is corrupt"):
        database_bytes(task_on({"file": str(path)}))


def test_the_cache_forgets_the_oldest_and_keeps_the_newest() -> None:
    cache: ByteCache[bytes] = ByteCache(10, len)
    made: list[str] = []

    def make(name: str, size: int) -> bytes:
        def build() -> bytes:
            made.append(name)
            return b"x" * size

        return cache.get(name, build)

    for name, size in [("a", 4), ("b", 4), ("a", 4), ("c", 4), ("a", 4), ("b", 4), ("huge", 99)]:
        assert len(make(name, size)) == size
    assert made == ["a", "b", "c", "b", "huge"] and len(cache) == 1
