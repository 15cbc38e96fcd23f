"""The task sets `sql-gym` and `sql-gym-kinds`: about 900 questions of 59 kinds over 16 generated databases.

`sql-gym` is split by database: no schema of dev or test occurs in training. `sql-gym-kinds` has the same
tasks split by kind of question: every schema occurs everywhere, the kinds of dev and test do not occur in
training.

The questions are made once, checked (`questions.py`) and kept in `questions.json`, so that loading is quick
and ids are stable; databases are built when they are needed. After a change to worlds or kinds make the file
anew:

    python -m palestra.tasks.sql.gym.pack
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

import orjson

from palestra.tasks.sql.gym.questions import Question, load_kinds, make_questions
from palestra.tasks.sql.gym.world import load_worlds
from palestra.tasks.task import Budget, Split, Task, TaskSet

SEED = 0
_FILE = "questions.json"
_BUDGET = Budget(turns=15, tokens=16_384, wall_s=300, command_s=5.0)


def load() -> TaskSet:
    """The questions split by database: 10 worlds to train on, 2 for development, 4 for the test."""
    splits = {world.name: world.split for world in load_worlds()}
    return TaskSet("sql-gym", [_task("sql-gym", q, splits[q.world]) for q in _questions()])


def load_by_kind() -> TaskSet:
    """The questions split by kind: 8 kinds are for development, 14 for the test, as `kinds.toml` says."""
    splits = {kind.name: kind.split for kind in load_kinds()}
    return TaskSet("sql-gym-kinds", [_task("sql-gym-kinds", q, splits[q.kind]) for q in _questions()])


def write_questions(path: Path) -> int:
    """Make all questions and write them to `path`; returns how many there are. Takes some ten seconds."""
    made = [question for world in load_worlds() for question in make_questions(world, SEED)]
    lines = b",\n".join(orjson.dumps(question) for question in made)
    path.write_bytes(b"[\n" + lines + b"\n]\n")
    return len(made)


@cache
def _questions() -> tuple[Question, ...]:
    body = orjson.loads(resources.files(__package__).joinpath(_FILE).read_bytes())
    return tuple(Question(**record) for record in body)


def _task(pack: str, question: Question, split: Split) -> Task:
    source = {
        "builder": "palestra.tasks.sql.gym.population:build",
        "args": {"world": question.world, "seed": SEED},
    }
    data = {"database": source, "db_id": question.world, "kind": question.kind, "gold_sql": question.gold_sql}
    if question.tie:
        data["gold_variants"] = question.variants
    return Task(
        id=f"{pack}/{question.world}/{question.kind}",
        family="sql",
        env="palestra/Sql-v0",
        split=split,
        instruction=question.text,
        data=data,
        budget=_BUDGET,
    )


if __name__ == "__main__":
    print(write_questions(Path(__file__).with_name(_FILE)), "questions")
