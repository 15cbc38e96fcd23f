"""Perturbed copies keep the schema and its promises, and change the contents."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from palestra.tasks.sql.database import connect
from palestra.tasks.sql.gym.population import build
from palestra.tasks.sql.perturb import perturbed

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "sql"

SCRIPT = """
    CREATE TABLE maker (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, boss_id INTEGER REFERENCES
    maker(id)); CREATE TABLE "odd name" (
        code TEXT PRIMARY KEY, maker_id INTEGER NOT NULL REFERENCES maker, price REAL CHECK (price >= 0),
        made DATE, kind TEXT, doubled REAL GENERATED ALWAYS AS (price * 2), picture BLOB
    ) WITHOUT ROWID;
    CREATE TABLE part (
        code TEXT REFERENCES "odd name"(code), place INTEGER, note TEXT, PRIMARY KEY (code, place)
    );
    CREATE TABLE log (what TEXT);
    CREATE TRIGGER watch AFTER INSERT ON part BEGIN INSERT INTO log VALUES ('part'); END;
    CREATE VIEW pricey AS SELECT code FROM "odd name" WHERE price > 50;
    CREATE VIRTUAL TABLE words USING fts5(body);
    CREATE TABLE empty (a INTEGER);
    CREATE TABLE lonely (a INTEGER);
    INSERT INTO lonely VALUES (1);
    INSERT INTO words VALUES ('hello world');
"""


def awkward() -> bytes:
    """A database with everything that makes rewriting hard."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(SCRIPT)
        connection.executemany(
            "INSERT INTO maker VALUES (?, ?, ?)", [(i, f"m{i}", i // 2 or None) for i in range(1, 31)]
        )
        connection.executemany(
            'INSERT INTO "odd name" (code, maker_id, price, made, kind, picture) VALUES (?, ?, ?, ?, ?, ?)',
            [
                (
                    f"c{i}",
                    i % 30 + 1,
                    i * 1.25,
                    f"2020-01-{i % 28 + 1:02}",
                    "ab"[i % 2],
                    b"\x00\xff" if i % 3 else None,
                )
                for i in range(80)
            ],
        )
        connection.executemany(
            "INSERT INTO part VALUES (?, ?, ?)",
            [(f"c{i % 80}", i, None if i % 4 else f"n{i}") for i in range(300)],
        )
        connection.commit()
        return connection.serialize()


def query(image: bytes, sql: str) -> list[Any]:
    with closing(connect(image)) as connection:
        return connection.execute(sql).fetchall()


IMAGES = {"awkward": awkward(), "clinic": build("clinic", 0), "farm": build("farm", 0)}
SCHEMA = "SELECT type, name, sql FROM sqlite_schema ORDER BY type, name"


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize("seed", range(4))
def test_a_copy_keeps_schema_keys_and_constraints(name: str, seed: int) -> None:
    copy = perturbed(IMAGES[name], seed)
    assert query(copy, SCHEMA) == query(IMAGES[name], SCHEMA)
    assert query(copy, "PRAGMA integrity_check") == [("ok",)]
    assert query(copy, "PRAGMA foreign_key_check") == []


@pytest.mark.parametrize("name", IMAGES)
def test_equal_seeds_give_equal_bytes_and_others_do_not(name: str) -> None:
    assert perturbed(IMAGES[name], 3) == perturbed(IMAGES[name], 3)
    assert perturbed(IMAGES[name], 3) != perturbed(IMAGES[name], 4)


def test_the_original_is_untouched() -> None:
    before = bytes(IMAGES["awkward"])
    perturbed(before, 0)
    assert before == IMAGES["awkward"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM visits",
        "SELECT SUM(fee) FROM visits",
        "SELECT MAX(visited_on), MIN(visited_on) FROM visits",
        "SELECT MAX(salary) FROM doctors",
        "SELECT reason, COUNT(*) FROM visits GROUP BY reason",
        "SELECT doctor_id FROM visits GROUP BY doctor_id ORDER BY COUNT(*) DESC LIMIT 5",
        "SELECT name FROM patients WHERE weight_kg IS NULL",
        "SELECT name FROM doctors ORDER BY salary DESC LIMIT 3",
    ],
)
def test_answers_differ_on_most_copies(sql: str) -> None:
    original = query(IMAGES["clinic"], sql)
    others = [query(perturbed(IMAGES["clinic"], seed), sql) for seed in range(6)]
    assert sum(other != original for other in others) >= 5 and all(others)


def test_unique_columns_stay_unique_and_not_null_stays() -> None:
    copy = perturbed(IMAGES["clinic"], 1)
    assert query(copy, "SELECT COUNT(*) - COUNT(DISTINCT name) FROM patients") == [(0,)]
    assert query(copy, "SELECT COUNT(*) FROM visits WHERE fee IS NULL") == [(0,)]
    assert query(copy, "SELECT COUNT(*) FROM patients WHERE weight_kg IS NULL")[0][0] > 0


def test_some_parents_stay_childless() -> None:
    sql = "SELECT COUNT(*) FROM doctors WHERE id NOT IN (SELECT doctor_id FROM visits)"
    assert all(query(perturbed(IMAGES["clinic"], seed), sql)[0][0] > 0 for seed in range(6))


def test_a_text_value_disappears_on_some_copy() -> None:
    sql = "SELECT COUNT(DISTINCT reason) FROM visits"
    assert len({query(perturbed(IMAGES["clinic"], seed), sql)[0][0] for seed in range(12)}) > 1


def test_texts_come_from_the_same_vocabulary() -> None:
    words = Counter(r[0] for r in query(IMAGES["clinic"], "SELECT reason FROM visits"))
    copied = {r[0] for r in query(perturbed(IMAGES["clinic"], 2), "SELECT reason FROM visits")}
    assert copied <= words.keys()


@pytest.mark.parametrize("name", ["chinook", "northwind"])
def test_real_databases_keep_their_promises(name: str) -> None:
    path = SHARED / f"{name}.sqlite"
    if not path.exists():
        pytest.skip(f"{path.name} is not in ../shared/data/sql")
    image = path.read_bytes()
    copy = perturbed(image, 1)
    assert query(copy, SCHEMA) == query(image, SCHEMA)
    assert query(copy, "PRAGMA integrity_check") == [("ok",)]
    broken = {tuple(row[0::2]) for row in query(copy, "PRAGMA foreign_key_check")}
    assert broken <= {tuple(row[0::2]) for row in query(image, "PRAGMA foreign_key_check")}
    table = "Invoice" if name == "chinook" else "Orders"
    assert query(copy, f"SELECT COUNT(*) FROM {table}") != query(image, f"SELECT COUNT(*) FROM {table}")
