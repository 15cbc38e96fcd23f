"""Whether a statement orders its rows, and how a schema reads."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from palestra.tasks.sql.schema import Column, Table, create_sql, quoted, read_schema
from palestra.tasks.sql.text import is_ordered


@pytest.mark.parametrize(
    ("sql", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("select a from t order\n  by a desc limit 3", True),
        ("SELECT a FROM t ORDER /* why */ BY a", True),
        ("WITH c AS (SELECT 1) SELECT * FROM c ORDER BY 1", True),
        ("SELECT a FROM t UNION SELECT b FROM t ORDER BY 1", True),
        ("SELECT a FROM t", False),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3)", False),
        ("WITH c AS (SELECT 1 ORDER BY 1) SELECT * FROM c", False),
        ("SELECT ROW_NUMBER() OVER (ORDER BY a) FROM t", False),
        ("SELECT 'ORDER BY a' FROM t", False),
        ('SELECT "ORDER BY" FROM t', False),
        ("SELECT a FROM t -- ORDER BY a", False),
        ("SELECT a FROM t /* ORDER BY a */", False),
        ('SELECT a AS "it\'s ( odd" FROM t ORDER BY a', True),
        ("SELECT [ORDER] FROM t GROUP BY a", False),
    ],
)
def test_is_ordered_looks_at_the_top_level_alone(sql: str, ordered: bool) -> None:
    assert is_ordered(sql) is ordered


@pytest.mark.parametrize(
    ("name", "written"), [("plain", "plain"), ("two words", '"two words"'), ('a"b', '"a""b"')]
)
def test_names_are_quoted_where_they_need_it(name: str, written: str) -> None:
    assert quoted(name) == written


def test_a_table_written_by_hand_reads_back_equal() -> None:
    city = Table("city", (Column("id", "INTEGER", primary_key=True), Column("name", "TEXT", not_null=True)))
    road = Table(
        "road",
        (Column("id", "INTEGER", primary_key=True), Column("to city", "INTEGER", references=("city", "id"))),
    )
    with closing(sqlite3.connect(":memory:")) as connection:
        for table in (city, road):
            connection.execute(create_sql(table))
        assert read_schema(connection) == {"city": city, "road": road}


def test_describe_is_one_line() -> None:
    columns = (
        Column("id", "INTEGER", primary_key=True),
        Column("two words", "TEXT"),
        Column("city_id", "INTEGER", references=("city", "id")),
    )
    assert Table("road", columns).describe() == (
        'road(id INTEGER PRIMARY KEY, "two words" TEXT, city_id INTEGER -> city(id))'
    )
