"""Annotation errors that can be seen without understanding the question."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palestra.cli.app import app
from palestra.tasks.files import write_tasks
from palestra.tasks.registry import load_tasks
from palestra.tasks.sql.audit import audit_task
from palestra.tasks.task import Task


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("audit") / "shops.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE shop (id INTEGER PRIMARY KEY, name TEXT, stars INTEGER, sales REAL)")
        rows = [(i, f"shop {i}", i % 3, i * 1.5) for i in range(40)]
        connection.executemany("INSERT INTO shop VALUES (?, ?, ?, ?)", rows)
        connection.commit()
    return path


def task_of(path: Path, gold: str) -> Task:
    data = {"database": {"file": str(path)}, "gold_sql": gold}
    return Task(id=gold[:60], family="sql", env="palestra/Sql-v0", split="dev", instruction="?", data=data)


@pytest.mark.parametrize(
    ("gold", "kinds"),
    [
        ("SELECT COUNT(*) FROM shop WHERE stars = 2", []),
        ("SELECT name FROM shop ORDER BY sales DESC LIMIT 3", []),
        ("SELECT SUM(sales) FROM shop", []),
        ("SELECT title FROM shop", ["fails"]),
        ("SELECT name FROM shop WHERE name = 'Shop 1'", ["empty"]),
        ("SELECT MAX(sales) FROM shop WHERE stars = 7", ["empty value", "constant"]),
        ("SELECT 42 FROM shop LIMIT 1", ["constant", "loose order"]),
        ("SELECT name FROM shop LIMIT 3", ["loose order"]),
        ("SELECT name FROM shop ORDER BY stars DESC LIMIT 3", ["ambiguous tie"]),
        ("SELECT name FROM shop ORDER BY stars DESC LIMIT 1;", ["ambiguous tie"]),
        ("SELECT name FROM shop WHERE sales = 58.5 AND stars = 0 AND name LIKE '%39'", ["fails on copies"]),
    ],
)
def test_what_is_flagged(shops: Path, gold: str, kinds: list[str]) -> None:
    found = [flag.kind for flag in audit_task(task_of(shops, gold))]
    assert [kind for kind in found if kind != "constant" or "constant" in kinds] == kinds


def test_our_own_packs_have_no_faults_that_show() -> None:
    tasks = [*load_tasks("sql-tiny", "dev")[:12], *load_tasks("sql-gym", "dev")[:20]]
    faults = {"fails", "empty", "empty value", "unsteady", "loose order"}
    assert [flag for task in tasks for flag in audit_task(task) if flag.kind in faults] == []


def test_the_command_says_what_it_found(shops: Path, tmp_path: Path) -> None:
    good, bad = (task_of(shops, sql) for sql in ("SELECT SUM(sales) FROM shop", "SELECT title FROM shop"))
    write_tasks(tmp_path / "tasks.jsonl", [good, bad])
    result = CliRunner().invoke(app, ["tasks", "audit", str(tmp_path / "tasks.jsonl")])
    assert result.exit_code == 1
    assert "fails: no such column: title" in result.stdout and "1 of 2 tasks are suspicious" in result.stdout
