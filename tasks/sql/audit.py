"""Is the gold of a SQL task right to measure with? `audit_task` runs it and flags what is suspicious.

More than half of the questions of well-known benchmarks have faulty annotations (uiuc-kang-lab/text_to_sql_benchmarks,
2026). What can be seen without understanding the question is seen here:

    fails             the gold does not run on the database
    empty             it returns nothing, so that any empty answer is right
    empty value       it returns one row of NULL alone
    fails on copies   it does not run, or returns nothing, on most perturbed copies: it hangs on chance values
    constant          it returns the same on every perturbed copy, so that a constant answer is right
    loose order       LIMIT without ORDER BY: which rows come is up to the engine
    ambiguous tie     ORDER BY ... LIMIT cuts through rows that are equal in order but differ in what is shown
    unsteady          two runs differ
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from palestra.tasks.errors import DatabaseError, QueryError
from palestra.tasks.sql.backends import open_guarded
from palestra.tasks.sql.database import Database, database
from palestra.tasks.sql.guarded import Limits, Result
from palestra.tasks.sql.perturb import perturbed
from palestra.tasks.sql.text import is_ordered
from palestra.tasks.task import Task

_COPIES = range(1, 6)
_LIMITS = Limits.lasting(30.0, rows=20_000, result_bytes=16 * 2**20)
_LIMIT = re.compile(r"\blimit\s+(\d+)\s*(?:offset\s+\d+\s*)?;?\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Flag:
    """One suspicion about one task."""

    task_id: str
    kind: str
    detail: str


def audit_task(task: Task) -> list[Flag]:
    """What is suspicious about the gold of `task`; empty where nothing is."""
    gold = task.data.get("gold_sql")
    if not isinstance(gold, str):
        return [Flag(task.id, "fails", "there is no gold_sql in its data")]
    try:
        where = database(task)
        result = _run(where, gold)
    except (DatabaseError, QueryError) as error:
        return [Flag(task.id, "fails", str(error))]
    return [Flag(task.id, kind, detail) for kind, detail in _suspicions(where, gold, result)]


def _suspicions(where: Database, gold: str, result: Result) -> Iterator[tuple[str, str]]:
    if not result.rows:
        yield "empty", "the gold returns no rows"
        return
    if len(result.rows) == 1 and all(value is None for value in result.rows[0]):
        yield "empty value", "the gold returns one row of NULL"
    if _run(where, gold) != result:
        yield "unsteady", "two runs of the gold differ"
    yield from _on_copies(where, gold, result)
    yield from _order(where, gold, result)


def _on_copies(where: Database, gold: str, result: Result) -> Iterator[tuple[str, str]]:
    bad, same = 0, 0
    for seed in _COPIES:
        try:
            found = _run(replace(where, image=perturbed(where.image, seed)), gold)
        except QueryError:
            bad += 1
            continue
        bad += not found.rows
        same += found.rows == result.rows
    if bad > len(_COPIES) // 2:
        yield "fails on copies", f"on {bad} of {len(_COPIES)} perturbed copies it fails or returns nothing"
    elif same == len(_COPIES):
        yield "constant", f"it returns the same on all of {len(_COPIES)} perturbed copies"


def _order(where: Database, gold: str, result: Result) -> Iterator[tuple[str, str]]:
    """What LIMIT makes of ties: one row more is asked for, and compared with the last one in what orders them."""
    limited = _LIMIT.search(gold)
    if limited is None:
        return
    if not is_ordered(gold):
        yield "loose order", f"LIMIT {limited.group(1)} without ORDER BY"
        return
    tied = _tied(where, gold[: limited.start()], int(limited.group(1)))
    if tied:
        yield "ambiguous tie", tied


def _tied(where: Database, unlimited: str, count: int) -> str:
    """Says that the rows around the cut change places when ties are broken the other way; else nothing."""
    shown = []
    for breaker in ("1 ASC", "1 DESC"):
        try:
            found = _run(where, f"{unlimited.rstrip()}, {breaker} LIMIT {count}")
        except QueryError:
            return ""
        shown.append(sorted(found.rows, key=repr))
    return f"which {count} rows come first depends on how ties are broken" if shown[0] != shown[1] else ""


def _run(where: Database, sql: str) -> Result:
    with closing(open_guarded(where, _LIMITS)) as opened:
        return opened.query(sql)
