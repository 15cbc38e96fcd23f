"""SQL of agents on every backend: what has to work, and one attack per test."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from needs import need
from palestra.envs.sql import SqlEnv
from palestra.envs.validate import validate_task
from palestra.rewards.sql import ExecutionAccuracy
from palestra.tasks.errors import DatabaseError, QueryError, QueryLimitError
from palestra.tasks.sql.backends import Guarded, open_guarded
from palestra.tasks.sql.database import Database, connect
from palestra.tasks.sql.guarded import Limits
from palestra.tasks.sql.schema import read_schema
from palestra.tasks.task import Budget, Task
from postgres import use_postgres

LIMITS = Limits(time_s=2.0, rows=500, result_bytes=100_000)


def make_image() -> bytes:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(
            """
            CREATE TABLE city (id INTEGER PRIMARY KEY, name TEXT, born DATE, size REAL, flag BLOB);
            CREATE TABLE road (id INTEGER PRIMARY KEY, city_id INTEGER REFERENCES city(id), "odd name" TEXT);
            CREATE VIEW big AS SELECT name FROM city WHERE size > 5;
            """
        )
        rows: list[Any] = [(i, f"city, {i}", f"20{i:02}-03-01", i / 2, b"\x00\xff") for i in range(20)]
        connection.executemany("INSERT INTO city VALUES (?, ?, ?, ?, ?)", rows)
        roads: list[Any] = [(i, i % 20, None if i % 3 else 'a "quoted"\nline') for i in range(60)]
        connection.executemany("INSERT INTO road VALUES (?, ?, ?)", roads)
        connection.commit()
        return connection.serialize()


IMAGE = make_image()
with closing(connect(IMAGE)) as _connection:
    DATABASE = Database(b"cities", IMAGE, read_schema(_connection))


@pytest.fixture(params=["sqlite", "duckdb", "postgres"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "duckdb":
        need(importlib.util.find_spec("duckdb"), "duckdb: pip install 'palestra[sql]'")
    if request.param == "postgres":
        use_postgres(monkeypatch)
    return str(request.param)


@pytest.fixture
def guarded(backend: str) -> Iterator[Guarded]:
    opened = open_guarded(replace(DATABASE, backend=backend), LIMITS)
    yield opened
    opened.close()
    opened.close()


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT COUNT(*) FROM city;", [(20,)]),
        ("SELECT name, size FROM city WHERE id = 3", [("city, 3", 1.5)]),
        ("SELECT SUM(size), AVG(size), MAX(id) FROM city", [(95.0, 4.75, 19)]),
        ('SELECT "odd name" FROM road WHERE id < 2 ORDER BY id', [('a "quoted"\nline',), (None,)]),
        ("SELECT born FROM city WHERE id = 4", [("2004-03-01",)]),
        ("SELECT flag FROM city WHERE id = 4", [(b"\x00\xff",)]),
        ("WITH c AS (SELECT 1 AS x) SELECT x FROM c", [(1,)]),
        ("SELECT c.id FROM city c JOIN road r ON r.city_id = c.id WHERE r.id = 41", [(1,)]),
        ("SELECT name FROM city WHERE 1 = 0", []),
        ("SELECT 1 = 1", [(1,)]),
        ("VALUES (3)", [(3,)]),
        (
            "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 9) SELECT SUM(x) FROM c",
            [(45,)],
        ),
    ],
)
def test_ordinary_sql_works_alike(guarded: Guarded, sql: str, rows: list[Any]) -> None:
    assert guarded.query(sql).rows == rows


def refused(guarded: Guarded, sql: str) -> str:
    """What is said; and the data is as it was."""
    with pytest.raises(QueryError) as caught:
        guarded.query(sql)
    assert guarded.query("SELECT COUNT(*), SUM(size) FROM city").rows == [(20, 95.0)]
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM city", "UPDATE city SET name = 'x'", "INSERT INTO city VALUES (99, 'x', 'x', 1, NULL)",
        "DROP TABLE city", "CREATE TABLE x (a INTEGER)", "CREATE TEMP TABLE x (a INTEGER)",
        "ALTER TABLE city ADD y TEXT",
        "WITH c AS (SELECT 1) DELETE FROM city", "BEGIN", "COMMIT", "VACUUM", "TRUNCATE city", "SELECT 1 INTO evil",
        "WITH d AS (DELETE FROM city RETURNING id) SELECT * FROM d",
    ],
)  # fmt: skip
def test_attack_writes(guarded: Guarded, sql: str) -> None:
    refused(guarded, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1; DROP TABLE city",
        "SELECT 1; SELECT 2",
        "SELECT 1); DROP TABLE city; --",
        "COMMIT; DROP TABLE city",
    ],
)
def test_attack_a_second_statement(guarded: Guarded, sql: str) -> None:
    refused(guarded, sql)


@pytest.mark.parametrize(
    "sql", ["ATTACH '{}' AS evil", "ATTACH 'file:{}?mode=rwc' AS evil", "VACUUM INTO '{}'"]
)
def test_attack_attach(guarded: Guarded, tmp_path: Path, sql: str) -> None:
    refused(guarded, sql.format(tmp_path / "evil.db"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "sql",
    [
        "COPY city TO '{}'", "COPY (SELECT * FROM city) TO '{}'", "COPY city FROM '/etc/passwd'",
        "COPY city TO PROGRAM 'touch {}'", "EXPORT DATABASE '{}'",
    ],
)  # fmt: skip
def test_attack_copy(guarded: Guarded, tmp_path: Path, sql: str) -> None:
    refused(guarded, sql.format(tmp_path / "out.csv"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')", "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT pg_read_file('/etc/passwd')", "SELECT pg_ls_dir('/')", "SELECT readfile('/etc/passwd')",
        "SELECT lo_import('/etc/passwd')", "SELECT * FROM glob('/*')", "SELECT getenv('HOME')",
    ],
)  # fmt: skip
def test_attack_files(guarded: Guarded, sql: str) -> None:
    refused(guarded, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT load_extension('x.so')",
        "INSTALL httpfs",
        "LOAD httpfs",
        "CREATE EXTENSION dblink",
        "LOAD 'x.so'",
    ],
)
def test_attack_extensions(guarded: Guarded, sql: str) -> None:
    refused(guarded, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM dblink('dbname=postgres', 'SELECT 1') AS t(x INT)", "SELECT dblink_connect('host=127.0.0.1')",
        "SELECT * FROM postgres_scan('host=127.0.0.1', 'public', 'x')", "SELECT * FROM sqlite_scan('/tmp/x.db', 'x')",
        "SELECT query_to_xml('SELECT 1', true, true, '')", "SELECT * FROM query('SELECT 1')",
        "SELECT database_to_xml(true, true, '')",
    ],
)  # fmt: skip
def test_attack_connections_and_sql_within_sql(guarded: Guarded, sql: str) -> None:
    refused(guarded, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT pg_sleep(30)", "SELECT pg_sleep_for('30 seconds')", "SELECT sleep_ms(30000)",
        "SELECT pg_advisory_lock(1)", "SELECT set_config('statement_timeout', '0', false)", "SET statement_timeout = 0",
        "SELECT pg_terminate_backend(pg_backend_pid())", "SELECT set_config('role', 'postgres', false)", "RESET ROLE",
        "PRAGMA query_only = 0", "SET enable_external_access = true", "SET lock_configuration = false",
    ],
)  # fmt: skip
def test_attack_sleep_locks_and_settings(guarded: Guarded, sql: str) -> None:
    started = time.monotonic()
    refused(guarded, sql)
    assert time.monotonic() - started < 25


def test_attack_endless_recursion(guarded: Guarded) -> None:
    sql = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 0 FROM c) SELECT COUNT(*) FROM c"
    assert "took too long" in refused(guarded, sql)


def test_attack_a_join_without_end(guarded: Guarded) -> None:
    sql = "SELECT COUNT(*) FROM road a, road b, road c, road d, road e, road f WHERE a.id + f.id > b.id * c.id * d.id"
    with pytest.raises(QueryLimitError):
        guarded.query(sql)


def test_attack_a_giant_result(guarded: Guarded) -> None:
    result = guarded.query("SELECT a.id FROM road a, road b, road c, road d")
    assert len(result.rows) == LIMITS.rows and not result.complete


def test_attack_a_giant_value(guarded: Guarded) -> None:
    for sql in (
        "SELECT repeat('x', 1000000000)",
        "SELECT lpad('x', 1000000000, 'y')",
        "SELECT zeroblob(1000000000)",
    ):
        refused(guarded, sql)


def test_attack_a_giant_statement(guarded: Guarded) -> None:
    assert "long" in refused(guarded, "SELECT '" + "x" * 30_000 + "'")


@pytest.mark.parametrize(
    "sql", ["SELECT random()", "SELECT now()", "SELECT CURRENT_TIMESTAMP", "SELECT CURRENT_DATE"]
)
def test_attack_what_changes_from_run_to_run(guarded: Guarded, sql: str) -> None:
    assert refused(guarded, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT query FROM pg_stat_activity", "SELECT * FROM pg_stat_get_activity(NULL)", "SELECT * FROM pg_settings",
        "SELECT * FROM duckdb_settings()", "SELECT * FROM pragma_database_list", "SELECT rolpassword FROM pg_authid",
        "SELECT * FROM pg_cursors", "SELECT statement FROM pg_prepared_statements",
    ],
)  # fmt: skip
def test_attack_the_catalogue_shows_no_gold_and_no_other_session(guarded: Guarded, sql: str) -> None:
    refused(guarded, sql)


@pytest.mark.parametrize(
    "sql", ["", ";", "-- nothing", "SELEC", "SELECT '\ud800'", "SELECT \x00", "SELECT x FROM city"]
)
def test_what_is_no_statement_is_refused(guarded: Guarded, sql: str) -> None:
    refused(guarded, sql)


def test_databases_are_apart(backend: str) -> None:
    one, two = (open_guarded(replace(DATABASE, backend=backend), LIMITS) for _ in range(2))
    with closing(one), closing(two):
        assert one.query("SELECT COUNT(*) FROM city").rows == two.query("SELECT COUNT(*) FROM city").rows
        one.close()
        assert two.query("SELECT COUNT(*) FROM city").rows == [(20,)]


def test_several_at_once(backend: str) -> None:
    found: list[Any] = []

    def play() -> None:
        with closing(open_guarded(replace(DATABASE, backend=backend), LIMITS)) as opened:
            found.append(opened.query("SELECT SUM(id) FROM road").rows)

    threads = [threading.Thread(target=play) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[(1770,)]] * 4


def task_on(path: Path, backend: str) -> Task:
    data = {
        "database": {"file": str(path), "backend": backend},
        "gold_sql": "SELECT COUNT(*) FROM city WHERE size > 5",
    }
    budget = Budget(command_s=2.0)
    return Task(
        id="c", family="sql", env="palestra/Sql-v0", split="dev", instruction="?", data=data, budget=budget
    )


def test_a_task_is_played_and_graded_on_its_backend(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "cities.sqlite"
    path.write_bytes(IMAGE)
    task = task_on(path, backend)
    report = validate_task(task)
    assert report.passed, report
    env = SqlEnv()
    env.reset(options={"task": task})
    shown = env.step('{"name": "query", "arguments": {"sql": "SELECT typeof(1)"}}')[0]
    assert ("error" in shown) == (backend == "postgres")
    env.close()
    assert ExecutionAccuracy()(task, "SELECT 9").value == 0.0


def test_an_unknown_backend_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="no backend 'oracle'; there are sqlite, duckdb and postgres"):
        open_guarded(replace(DATABASE, backend="oracle"), LIMITS)


def test_without_a_server_the_user_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    need(importlib.util.find_spec("psycopg"), "psycopg: pip install 'palestra[sql]'")
    monkeypatch.delenv("PALESTRA_POSTGRES", raising=False)
    monkeypatch.setattr("palestra.tasks.sql.postgres_guarded._role", None)
    with pytest.raises(DatabaseError, match="set PALESTRA_POSTGRES"):
        open_guarded(replace(DATABASE, backend="postgres"), LIMITS)
    assert "PALESTRA_POSTGRES" not in os.environ
