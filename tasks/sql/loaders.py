"""Spider, BIRD and Spider 2.0-lite: their question files, with SQLite databases under a folder of the user's.

    load_tasks("spider?path=spider/dev.json&db_root=spider/database")
    load_tasks("bird?path=mini_dev_sqlite.json&db_root=dev_databases&existing_only=true")

A record needs a question, a database and a gold SQL; each benchmark calls them differently and all its
spellings are understood, so converted files work too. A database is looked for at db_root/<id>/<id>.sqlite,
db_root/<id>.sqlite, and the same with .db. `rule=bird`, spider or spider2 grades as the benchmark does instead of
strictly (rewards/sql_rules.py). The benchmarks themselves are not part of this project; mind their
licences and annotation errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palestra.tasks.errors import TaskFileError
from palestra.tasks.files import read_records, read_text
from palestra.tasks.task import Budget, Split, Task, TaskSet

QUESTION_FIELDS = ("question", "instruction")
DATABASE_FIELDS = ("db_id", "db")
GOLD_FIELDS = ("query", "SQL", "gold_sql")
ID_FIELDS = ("instance_id", "question_id")
_BUDGET = Budget(turns=15, tokens=32_768, wall_s=600, command_s=30.0)


@dataclass(frozen=True, slots=True)
class _Record:
    """One question as it was found; `gold` and `database` are None where they are absent."""

    id: str
    db_id: str
    question: str
    evidence: str
    difficulty: str
    gold: str | None
    database: Path | None


def load_spider(
    path: str, db_root: str, split: Split = "dev", existing_only: bool = False, rule: str = "strict"
) -> TaskSet:
    """Spider questions (Yu et al. 2018, dev.json: question, query, db_id). Raises TaskFileError."""
    return _load("spider", path, db_root, None, split, existing_only, rule)


def load_bird(
    path: str, db_root: str, split: Split = "dev", existing_only: bool = False, rule: str = "strict"
) -> TaskSet:
    """BIRD questions (Li et al. 2023, dev.json: question, evidence, SQL, db_id). Raises TaskFileError."""
    return _load("bird", path, db_root, None, split, existing_only, rule)


def load_spider2(
    path: str,
    db_root: str,
    gold_dir: str,
    split: Split = "test",
    existing_only: bool = False,
    rule: str = "strict",
) -> TaskSet:
    """Spider 2.0-lite questions (instance_id, question or instruction, db); gold_dir/<instance_id>.sql.

    Raises TaskFileError.
    """
    return _load("spider2", path, db_root, Path(gold_dir), split, existing_only, rule)


def find_database(db_root: Path, db_id: str) -> Path | None:
    """The SQLite file of a database, or None."""
    names = [f"{db_id}/{db_id}", db_id]
    candidates = (db_root / f"{name}{suffix}" for name in names for suffix in (".sqlite", ".db"))
    return next((c for c in candidates if c.is_file()), None)


def _load(
    name: str,
    path: str,
    db_root: str,
    gold_dir: Path | None,
    split: Split,
    existing_only: bool,
    rule: str,
) -> TaskSet:
    found = list(_records(Path(path), Path(db_root), gold_dir))
    usable = [r for r in found if r.gold is not None and r.database is not None]
    if len(usable) < len(found) and not existing_only:
        raise TaskFileError(_absences(path, db_root, gold_dir, found))
    tasks = [_task(name, record, split, rule) for record in usable]
    ids = [task.id for task in tasks]
    repeated = sorted({i for i in ids if ids.count(i) > 1}) if len(set(ids)) < len(ids) else []
    if repeated:
        raise TaskFileError(f"{path}: ids are used twice: {', '.join(repeated[:10])}")
    return TaskSet(name, tasks)


def _records(path: Path, db_root: Path, gold_dir: Path | None) -> Iterator[_Record]:
    databases: dict[str, Path | None] = {}
    for index, (where, body) in enumerate(read_records(path)):
        if not isinstance(body, dict):
            raise TaskFileError(f"{path}, {where}: a question is an object, this is a {type(body).__name__}")
        place = f"{path}, {where}"
        db_id = _text(body, DATABASE_FIELDS, place)
        if db_id not in databases:
            databases[db_id] = find_database(db_root, db_id)
        identity = next((str(body[f]) for f in ID_FIELDS if f in body), str(index))
        yield _Record(
            id=identity,
            db_id=db_id,
            question=_text(body, QUESTION_FIELDS, place),
            evidence=str(body.get("evidence") or ""),
            difficulty=str(body.get("difficulty") or ""),
            gold=_text(body, GOLD_FIELDS, place) if gold_dir is None else _gold_file(gold_dir, identity),
            database=databases[db_id],
        )


def _text(body: Mapping[str, Any], names: tuple[str, ...], place: str) -> str:
    """The first of the fields `names` that is there; it must hold text."""
    for name in names:
        if name in body:
            if not isinstance(body[name], str) or not body[name].strip():
                raise TaskFileError(f"{place}: field {name!r} must be text, it is {body[name]!r}")
            return str(body[name])
    there = ", ".join(body) or "nothing"
    raise TaskFileError(f"{place}: field {' or '.join(map(repr, names))} is missing; there is {there}")


def _gold_file(gold_dir: Path, identity: str) -> str | None:
    file = gold_dir / f"{identity}.sql"
    return read_text(file) if file.is_file() else None


def _absences(path: str, db_root: str, gold_dir: Path | None, found: list[_Record]) -> str:
    databases = sorted({r.db_id for r in found if r.database is None})
    golds = [r.id for r in found if r.gold is None]
    parts = [f"{len(databases)} databases are not in {db_root}: {', '.join(databases)}"] if databases else []
    parts += [f"{len(golds)} gold files are not in {gold_dir}: {', '.join(golds)}"] if golds else []
    return f"{path}: {'; '.join(parts)}. Use existing_only=true to leave out what needs them."


def _task(name: str, record: _Record, split: Split, rule: str) -> Task:
    hint = f"\nHint: {record.evidence}" if record.evidence else ""
    data: dict[str, Any] = {
        "database": {"file": str(record.database)},
        "db_id": record.db_id,
        "question": record.question,
        "gold_sql": record.gold,
        "kind": record.difficulty or name,
    }
    data |= {"rule": rule} if rule != "strict" else {}
    data |= {k: v for k, v in (("evidence", record.evidence), ("difficulty", record.difficulty)) if v}
    return Task(
        id=f"{name}/{record.db_id}/{record.id}",
        family="sql",
        env="palestra/Sql-v0",
        split=split,
        instruction=record.question + hint,
        data=data,
        budget=_BUDGET,
    )
