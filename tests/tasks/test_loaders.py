"""Loading Spider, BIRD and Spider 2.0 question files."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from palestra.tasks.errors import TaskFileError
from palestra.tasks.registry import load_tasks
from palestra.tasks.sql.database import connect, database_bytes
from palestra.tasks.sql.loaders import find_database, load_bird, load_spider, load_spider2

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "sql"

SPIDER = {"db_id": "pets", "query": "SELECT COUNT(*) FROM pet", "question": "How many pets?"}
BIRD = {
    "question_id": 1471,
    "db_id": "pets",
    "question": "How many dogs?",
    "evidence": "dogs refers to kind = 'dog'",
    "SQL": "SELECT COUNT(*) FROM pet WHERE kind = 'dog'",
    "difficulty": "simple",
}
SPIDER2 = {"instance_id": "local001", "db": "pets", "question": "How many cats?"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for place in ("pets/pets.sqlite", "flat.sqlite", "other.db", "deep/deep.db"):
        path = tmp_path / "databases" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE pet (id INTEGER PRIMARY KEY, kind TEXT)")
            connection.executemany("INSERT INTO pet (kind) VALUES (?)", [("dog",), ("cat",), ("dog",)])
            connection.commit()
    return tmp_path


@pytest.fixture
def write(root: Path) -> Callable[[Any], str]:
    def write_file(records: Any) -> str:
        path = root / "questions.json"
        path.write_bytes(orjson.dumps(records))
        return str(path)

    return write_file


def test_spider(root: Path, write: Callable[[Any], str]) -> None:
    (task,) = load_spider(write([SPIDER]), str(root / "databases"))
    assert (task.id, task.split, task.instruction) == ("spider/pets/0", "dev", "How many pets?")
    assert task.data["gold_sql"] == SPIDER["query"] and task.data["db_id"] == "pets"
    with closing(connect(database_bytes(task))) as connection:
        assert connection.execute(task.data["gold_sql"]).fetchall() == [(3,)]


def test_bird_keeps_its_hint_and_difficulty(root: Path, write: Callable[[Any], str]) -> None:
    (task,) = load_bird(write([BIRD]), str(root / "databases"), split="test")
    assert task.id == "bird/pets/1471" and task.split == "test"
    assert task.instruction == "How many dogs?\nHint: dogs refers to kind = 'dog'"
    assert task.data["difficulty"] == task.data["kind"] == "simple"


def test_spider2_reads_gold_files(root: Path) -> None:
    (root / "gold").mkdir()
    (root / "gold" / "local001.sql").write_text("SELECT 1", encoding="utf-8")
    path = root / "spider2.jsonl"
    records = [SPIDER2, {"instance_id": "local002", "db": "pets", "instruction": "And dogs?"}]
    path.write_bytes(b"\n".join(map(orjson.dumps, records)))
    arguments = str(path), str(root / "databases"), str(root / "gold")
    with pytest.raises(TaskFileError, match="1 gold files are not in .*: local002"):
        load_spider2(*arguments)
    assert [t.id for t in load_spider2(*arguments, existing_only=True)] == ["spider2/pets/local001"]


def test_through_the_registry(root: Path, write: Callable[[Any], str]) -> None:
    name = f"bird?path={write([BIRD])}&db_root={root / 'databases'}&existing_only=true"
    assert [t.id for t in load_tasks(name)] == ["bird/pets/1471"]


@pytest.mark.parametrize("db_id", ["pets", "flat", "other", "deep"])
def test_databases_are_found_in_all_usual_places(root: Path, db_id: str) -> None:
    found = find_database(root / "databases", db_id)
    assert found is not None and found.stem == db_id


def test_all_absent_databases_are_named_at_once(root: Path, write: Callable[[Any], str]) -> None:
    path = write([SPIDER, SPIDER | {"db_id": "zoo"}, SPIDER | {"db_id": "farm"}, SPIDER | {"db_id": "zoo"}])
    with pytest.raises(TaskFileError, match="2 databases are not in .*: farm, zoo.*existing_only"):
        load_spider(path, str(root / "databases"))
    assert len(load_spider(path, str(root / "databases"), existing_only=True)) == 1


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (
            {k: v for k, v in SPIDER.items() if k != "query"},
            r"item 1: field 'query' or 'SQL'.* is missing; there is db_id",
        ),
        (
            {k: v for k, v in SPIDER.items() if k != "question"},
            r"item 1: field 'question' or 'instruction' is missing",
        ),
        ({k: v for k, v in SPIDER.items() if k != "db_id"}, r"item 1: field 'db_id' or 'db' is missing"),
        (SPIDER | {"question": None}, r"item 1: field 'question' must be text, it is None"),
        (SPIDER | {"query": " "}, r"item 1: field 'query' must be text"),
        ({}, r"there is nothing"),
        ("text", r"item 1: a question is an object, this is a str"),
    ],
)
def test_a_bad_record_is_named(root: Path, write: Callable[[Any], str], record: Any, says: str) -> None:
    with pytest.raises(TaskFileError, match=says):
        load_spider(write([SPIDER, record]), str(root / "databases"))


def test_ids_used_twice_are_named(root: Path, write: Callable[[Any], str]) -> None:
    with pytest.raises(TaskFileError, match="used twice: bird/pets/1471"):
        load_bird(write([BIRD, BIRD]), str(root / "databases"))


def test_a_path_out_of_the_root_is_only_an_absent_database(root: Path, write: Callable[[Any], str]) -> None:
    path = write([SPIDER | {"db_id": "../../etc/passwd"}])
    with pytest.raises(TaskFileError, match="databases are not in"):
        load_spider(path, str(root / "databases"))


@pytest.mark.parametrize(
    ("file", "load", "questions", "databases"),
    [("bird_mini_dev_sqlite.json", load_bird, 500, 11), ("spider-dev-converted.json", load_spider, 1034, 20)],
)
def test_the_real_files_load(
    tmp_path: Path, file: str, load: Callable[..., Any], questions: int, databases: int
) -> None:
    path = SHARED / file
    if not path.exists():
        pytest.skip(f"{file} is not in ../shared/data/sql")
    with pytest.raises(TaskFileError, match=f"{databases} databases are not in"):
        load(str(path), str(tmp_path))
    for db_id in {record["db_id"] for record in orjson.loads(path.read_bytes())}:
        (tmp_path / f"{db_id}.sqlite").touch()
    assert len(load(str(path), str(tmp_path))) == questions
