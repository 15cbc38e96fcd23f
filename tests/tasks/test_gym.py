"""The generated pack: its size, its splits, and that its questions are fair."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing

import pytest

from palestra.tasks.registry import load_tasks
from palestra.tasks.sql.database import connect, database
from palestra.tasks.sql.gym.population import build
from palestra.tasks.sql.gym.questions import MAX_ROWS, load_kinds, make_questions
from palestra.tasks.sql.gym.world import load_worlds
from palestra.tasks.task import SPLITS, TaskSet

WORLDS = load_worlds()


@pytest.fixture(scope="module")
def gym() -> TaskSet:
    return load_tasks("sql-gym")


@pytest.fixture(scope="module")
def by_kind() -> TaskSet:
    return load_tasks("sql-gym-kinds")


def test_the_pack_is_large_and_varied(gym: TaskSet) -> None:
    assert len(gym) >= 600
    assert len({t.data["kind"] for t in gym}) >= 25
    assert len({t.data["db_id"] for t in gym}) >= 12


def test_schemas_of_dev_and_test_are_never_seen_in_training(gym: TaskSet) -> None:
    databases = [{t.data["db_id"] for t in gym.split(split)} for split in SPLITS]
    assert all(databases) and sum(map(len, databases)) == len(set.union(*databases))
    tables = [{t for d in group for t in _tables(d)} for group in databases]
    assert not tables[0] & tables[1] and not tables[0] & tables[2]


def _tables(world: str) -> set[tuple[str, tuple[str, ...]]]:
    found = next(w for w in WORLDS if w.name == world)
    return {(e.table, tuple(f.name for f in e.fields)) for e in found.entities}


def test_kinds_of_dev_and_test_are_never_seen_in_training(by_kind: TaskSet) -> None:
    kinds = [{t.data["kind"] for t in by_kind.split(split)} for split in SPLITS]
    assert all(kinds) and sum(map(len, kinds)) == len(set.union(*kinds))


def test_both_packs_ask_the_same(gym: TaskSet, by_kind: TaskSet) -> None:
    assert Counter(t.instruction for t in gym) == Counter(t.instruction for t in by_kind)
    assert not {t.id for t in gym} & {t.id for t in by_kind}


def test_ids_tell_database_and_kind(gym: TaskSet) -> None:
    task = gym.get("sql-gym/clinic/group_average")
    assert task is not None and task.split == "train"
    assert (task.data["db_id"], task.data["kind"]) == ("clinic", "group_average")


@pytest.mark.parametrize("world", [w.name for w in WORLDS])
def test_databases_are_deterministic_and_of_some_size(world: str) -> None:
    image = build(world, 0)
    assert image == build(world, 0) and image != build(world, 1)
    with closing(connect(image)) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        ]
        rows = sum(connection.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in tables)
        assert len(tables) >= 3 and 1500 <= rows <= 10_000
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_every_gold_gives_an_answer_of_readable_size(gym: TaskSet) -> None:
    for task in gym:
        with closing(connect(database(task).image)) as connection:
            rows = connection.execute(task.data["gold_sql"]).fetchall()
            assert 0 < len(rows) <= MAX_ROWS and None not in rows[0], task.id
            for variant in task.data.get("gold_variants", ()):
                assert connection.execute(variant).fetchall() == rows, task.id


def test_questions_read_like_english(gym: TaskSet) -> None:
    for task in gym:
        text = task.instruction
        assert text[0].isupper() and text[-1] in ".?", text
        assert not re.search(r"[{}]|  |\b[Aa] [aeiou]", text), text
        assert task.data["gold_sql"] not in text


@pytest.mark.parametrize("world", WORLDS[:2], ids=lambda w: w.name)
def test_the_stored_questions_are_what_the_code_makes(gym: TaskSet, world: object) -> None:
    """When this fails after a change to worlds, kinds or perturbation, run python -m
    palestra.tasks.sql.gym.pack.
    """
    found = next(w for w in WORLDS if w == world)
    stored = {
        t.data["kind"]: (t.instruction, t.data["gold_sql"]) for t in gym if t.data["db_id"] == found.name
    }
    assert stored == {q.kind: (q.text, q.gold_sql) for q in make_questions(found, 0)}


def test_most_kinds_can_be_asked_in_every_world(gym: TaskSet) -> None:
    asked = Counter(t.data["kind"] for t in gym)
    assert asked.keys() == {kind.name for kind in load_kinds()}
    assert sum(count == len(WORLDS) for count in asked.values()) >= 40
