"""What SQL of an agent may do: each test is one attack, or one thing that must go on working."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.tasks.errors import QueryError, QueryLimitError
from palestra.tasks.sql.database import Database, connect
from palestra.tasks.sql.guarded import GuardedDatabase, Limits
from palestra.tasks.sql.schema import read_schema


def make_database() -> Database:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(
            """
            CREATE TABLE city (id INTEGER PRIMARY KEY, name TEXT, born DATE, size REAL);
            CREATE TABLE road (id INTEGER PRIMARY KEY, city_id INTEGER REFERENCES city(id));
            CREATE VIEW big AS SELECT name FROM city WHERE size > 5;
            """
        )
        rows = [(i, f"city {i}", f"20{i:02}-03-01", i / 2) for i in range(20)]
        connection.executemany("INSERT INTO city VALUES (?, ?, ?, ?)", rows)
        connection.commit()
        image = connection.serialize()
    with closing(connect(image)) as connection:
        return Database(b"test", image, read_schema(connection))


DATABASE = make_database()
QUICK = Limits(time_s=5.0, vm_steps=200_000, value_bytes=10_000)


@pytest.fixture
def guarded() -> GuardedDatabase:
    return GuardedDatabase(DATABASE, QUICK)


@pytest.mark.parametrize(
    ("sql", "first"),
    [
        ("SELECT COUNT(*) FROM city", 20),
        ("SELECT COUNT(*) FROM city;  \n", 20),
        ("SELECT name FROM big ORDER BY name LIMIT 1", "city 11"),
        ("WITH c AS (SELECT 1 AS x) SELECT COUNT(*) FROM c", 1),
        (
            "WITH RECURSIVE c AS (SELECT 1 x UNION ALL SELECT x+1 FROM c WHERE x < 9) SELECT SUM(x) FROM c",
            45,
        ),
        ("SELECT COUNT(*) FROM (SELECT DISTINCT name FROM city)", 20),
        ("SELECT strftime('%Y', born) FROM city WHERE id = 4", "2004"),
        ("SELECT date(born, '+1 month') FROM city WHERE id = 4", "2004-04-01"),
        ("SELECT julianday('2024-01-02') - julianday('2024-01-01')", 1.0),
        ("SELECT IIF(size > 5, 'big', 'small') FROM city WHERE id = 1", "small"),
        ("SELECT group_concat(id, '-') FROM (SELECT id FROM city WHERE id < 3)", "0-1-2"),
        ("SELECT ROW_NUMBER() OVER (ORDER BY id) FROM city LIMIT 1", 1),
        ("SELECT name LIKE 'CITY%' FROM city LIMIT 1", 1),
        ("VALUES (3)", 3),
        ("SELECT 1 -- a comment; with a semicolon", 1),
    ],
)
def test_ordinary_sql_works(guarded: GuardedDatabase, sql: str, first: object) -> None:
    assert guarded.query(sql).rows[0][0] == first


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM city",
        "UPDATE city SET name = 'x'",
        "INSERT INTO city (name) VALUES ('x')",
        "INSERT INTO city (name) VALUES ('x') RETURNING id",
        "REPLACE INTO city (id) VALUES (1)",
        "WITH c AS (SELECT 1) DELETE FROM city",
        "CREATE TABLE x (a)",
        "CREATE TEMP TABLE x (a)",
        "CREATE VIEW x AS SELECT 1",
        "CREATE VIRTUAL TABLE x USING fts5(a)",
        "CREATE TEMP TRIGGER x AFTER INSERT ON city BEGIN SELECT 1; END",
        "DROP TABLE city",
        "ALTER TABLE city RENAME TO town",
        "PRAGMA query_only = 0",
        "PRAGMA table_info(city)",
        "SELECT * FROM pragma_table_info('city')",
        "SELECT name FROM dbstat",
        "SELECT * FROM sqlite_dbpage",
        "SELECT * FROM json_each('[1]')",
        "ANALYZE",
        "REINDEX",
        "VACUUM",
        "BEGIN",
        "SAVEPOINT a",
        "COMMIT",
        "DETACH main",
        "SELECT load_extension('x.so')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT writefile('x', 'y')",
        "SELECT sqlite_version()",
        "SELECT json_group_array(name) FROM city",
    ],
)
def test_everything_but_reading_is_refused(guarded: GuardedDatabase, sql: str) -> None:
    with pytest.raises(QueryError):
        guarded.query(sql)
    assert guarded.query("SELECT COUNT(*) FROM city").rows == [(20,)]


@pytest.mark.parametrize(
    "sql", ["ATTACH '{}' AS evil", "VACUUM INTO '{}'", "ATTACH 'file:{}?mode=rwc' AS evil"]
)
def test_no_file_is_made(guarded: GuardedDatabase, tmp_path: Path, sql: str) -> None:
    with pytest.raises(QueryError, match="only SELECT"):
        guarded.query(sql.format(tmp_path / "evil.db"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT random()",
        "SELECT hex(randomblob(4))",
        "SELECT name FROM city ORDER BY RANDOM()",
        "SELECT CURRENT_DATE",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT date('now')",
        "SELECT date(' NOW ')",
        "SELECT date('n' || 'ow')",
        "SELECT date()",
        "SELECT strftime('%s')",
        "SELECT strftime('%s', 'now')",
        "SELECT julianday('now')",
        "SELECT unixepoch()",
        "SELECT datetime(born, 'localtime') FROM city",
        "SELECT datetime(born, 'utc') FROM city",
        "SELECT changes()",
        "SELECT last_insert_rowid()",
    ],
)
def test_what_changes_from_run_to_run_is_refused(guarded: GuardedDatabase, sql: str) -> None:
    with pytest.raises(QueryError, match="not allowed|no such"):
        guarded.query(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE c AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c",
        "WITH RECURSIVE c AS (SELECT 1 AS x UNION ALL SELECT x FROM c) SELECT x FROM c ORDER BY x",
        "SELECT COUNT(*) FROM city a, city b, city c, city d, city e",
        "SELECT MAX(a.name || b.name || c.name || d.name) FROM city a, city b, city c, city d",
    ],
)
def test_endless_work_ends(guarded: GuardedDatabase, sql: str) -> None:
    with pytest.raises(QueryLimitError, match="took too long"):
        guarded.query(sql)
    assert guarded.query("SELECT 1").rows == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT replace(printf('%09000d', 0), '0', '0123456789')",
        "SELECT hex(printf('%09000d', 0))",
        "SELECT group_concat(printf('%09000d', id)) FROM city",
        "SELECT printf('%09000d', 0) || printf('%09000d', 0)",
        "SELECT '" + "x" * 30_000 + "'",
    ],
)
def test_a_huge_value_is_refused(guarded: GuardedDatabase, sql: str) -> None:
    with pytest.raises(QueryLimitError, match="too long"):
        guarded.query(sql)


def test_zeroblob_is_refused(guarded: GuardedDatabase) -> None:
    with pytest.raises(QueryError, match="the function zeroblob is not allowed"):
        guarded.query("SELECT zeroblob(1000000000)")


def test_a_long_result_is_cut_by_rows() -> None:
    result = GuardedDatabase(DATABASE, Limits(rows=30)).query("SELECT a.id FROM city a, city b")
    assert len(result.rows) == 30 and not result.complete


def test_a_result_of_exactly_the_bound_is_complete() -> None:
    result = GuardedDatabase(DATABASE, Limits(rows=20)).query("SELECT id FROM city")
    assert len(result.rows) == 20 and result.complete


def test_a_wide_result_is_cut_by_bytes() -> None:
    limits = Limits(result_bytes=50_000, value_bytes=10_000)
    result = GuardedDatabase(DATABASE, limits).query("SELECT printf('%09000d', id) FROM city")
    assert len(result.rows) == 5 and not result.complete


@pytest.mark.parametrize(
    "sql", ["SELECT 1; DROP TABLE city", "SELECT 1; SELECT 2", "SELECT 1; /**/ DELETE FROM city"]
)
def test_one_statement_only(guarded: GuardedDatabase, sql: str) -> None:
    with pytest.raises(QueryError):
        guarded.query(sql)
    assert guarded.query("SELECT COUNT(*) FROM city").rows == [(20,)]


@pytest.mark.parametrize("sql", ["", "   ", ";", "-- only a comment", "/* only a comment */"])
def test_no_statement_is_an_error(guarded: GuardedDatabase, sql: str) -> None:
    with pytest.raises(QueryError, match="there is no SELECT"):
        guarded.query(sql)


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT x FROM city", "no such column: x"),
        ("SELECT 1 FROM town", "no such table: town"),
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("SELECT \x00", "null character"),
        ("SELECT '\ud800'", "not valid Unicode"),
        ("SELECT :a", "binding"),
    ],
)
def test_errors_read_like_sqlite(guarded: GuardedDatabase, sql: str, says: str) -> None:
    with pytest.raises(QueryError, match=says):
        guarded.query(sql)


def test_the_schema_may_be_read(guarded: GuardedDatabase) -> None:
    sql = "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
    assert guarded.query(sql).rows == [("city",), ("road",)]


def test_another_thread_may_continue(guarded: GuardedDatabase) -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(guarded.query("SELECT 1").rows))
    thread.start()
    thread.join()
    assert found == [[(1,)]] and guarded.query("SELECT 2").rows == [(2,)]


def test_close_twice(guarded: GuardedDatabase) -> None:
    guarded.close()
    guarded.close()


@settings(max_examples=300, deadline=None)
@given(
    st.text()
    | st.lists(
        st.sampled_from(
            [
                "SELECT",
                "FROM",
                "city",
                "road",
                "WHERE",
                "name",
                "id",
                "(",
                ")",
                ",",
                "*",
                "'x'",
                "1",
                ";",
                "--",
                "/*",
                "UNION",
                "ALL",
                "WITH",
                "RECURSIVE",
                "ATTACH",
                "AS",
                "DELETE",
                "PRAGMA",
                "date",
                "'now'",
                "random",
                "||",
                "=",
                "IN",
                "NULL",
                "ORDER",
                "BY",
                "LIMIT",
            ]
        ),
        max_size=14,
    ).map(" ".join)
)
def test_any_text_gives_rows_or_a_query_error_and_changes_nothing(sql: str) -> None:
    guarded = GuardedDatabase(DATABASE, QUICK)
    with closing(guarded):
        first, second = (_outcome(guarded, sql) for _ in range(2))
        assert first == second
        assert guarded.query("SELECT COUNT(*), SUM(size) FROM city").rows == [(20, 95.0)]


def _outcome(guarded: GuardedDatabase, sql: str) -> object:
    try:
        return guarded.query(sql).rows
    except QueryError as error:
        return str(error)
