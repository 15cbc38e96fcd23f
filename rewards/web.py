"""Grading by state: the database that an agent leaves behind, compared with the one that the goal leads to.

`task.data["gold_sql"]` is run on a fresh copy of the initial state. The outcome scores 1 where every table holds the
same rows, whatever their order, and the answer, where one was asked for, is the same; so a change beside the goal
costs as much as a missing one. Nothing that a page shows is looked at.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from palestra.rewards.score import GraderError
from palestra.tasks.task import Task
from palestra.tasks.web.sites.build import initial, opened
from palestra.trajectories.model import Score

Tables = Mapping[str, Counter[tuple[Any, ...]]]
MAX_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an agent leaves behind: the SQLite image of the site, and its answer."""

    state: bytes
    answer: str | None


class StateCheck:
    """The grader of tasks on sites of our own. `task.data`: site, seed, gold_sql and answer."""

    name = "web-state"
    version = "1"

    def __call__(self, task: Task, submission: Outcome) -> Score:
        """Score an outcome; `parts` has state and answer apart. Raises GraderError where the gold does not run."""
        wanted, got = self._wanted(task), tables(submission.state)
        differences = differ(wanted, got)
        parts = {"state": float(not differences)}
        answer = task.data.get("answer")
        if answer is not None:
            parts["answer"] = float(same_answer(submission.answer, answer))
            if not parts["answer"]:
                differences = [*differences, f"the answer was {submission.answer!r}"]
        why = "; ".join(differences) or "the state is the one that was asked for"
        return Score(float(not differences), True, parts, self.name, self.version, why)

    def _wanted(self, task: Task) -> Tables:
        try:
            with closing(opened(initial(task.data["site"], task.data["seed"]))) as database:
                for statement in task.data["gold_sql"]:
                    database.execute(statement)
                return tables(database.serialize())
        except (KeyError, ValueError, sqlite3.Error) as error:
            raise GraderError(f"task {task.id!r}: the gold state cannot be had: {error!r}") from error


def tables(state: bytes) -> Tables:
    """Every table's rows as a multiset. Raises GraderError where `state` is not a database."""
    try:
        with closing(opened(state)) as database:
            names = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
            return {n: Counter(map(tuple, database.execute(f'SELECT * FROM "{n}"'))) for (n,) in names}
    except sqlite3.Error as error:
        raise GraderError(f"the state of the site cannot be read: {error}") from error


def differ(wanted: Tables, got: Tables) -> list[str]:
    """One sentence per table that is not the same."""
    return [_sentence(name, wanted[name] - got[name], got[name] - wanted[name])
            for name in wanted if wanted[name] != got.get(name)]  # fmt: skip


def _sentence(table: str, missing: Counter[Any], extra: Counter[Any]) -> str:
    return f"{table} lacks {_some(list(missing))} and has {_some(list(extra))} too many"


def _some(found: Sequence[Any]) -> str:
    shown = ", ".join(str(row)[:120] for row in found[:MAX_SHOWN])
    return f"{shown} and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else shown or "nothing"


def same_answer(given: str | None, wanted: str) -> bool:
    """Whether an answer says `wanted`: the same number, or the same words without case, space and punctuation."""
    if given is None:
        return False
    one, other = _normal(given), _normal(wanted)
    try:
        return abs(float(one) - float(other)) < 1e-9
    except ValueError:
        return one == other


def _normal(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().strip(".!\"'").lower()
