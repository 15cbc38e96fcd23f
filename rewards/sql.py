"""Grading SQL by what it returns, on the database of the task and on perturbed copies of it.

A submission scores 1 when its result equals that of the gold SQL everywhere: the same rows as a multiset (as
a list where the gold has an ORDER BY of its own), the same number of columns in any order. The copies make
constants, empty results and lucky answers fail; a copy on which the gold is empty, fails, or returns what it
returns on the original judges little and gives way to another seed. Where the task lists `gold_variants`,
other readings of the same question that differ only in how ties are broken, a copy on which one of them
disagrees with the gold is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from palestra.rewards.score import GraderError, nothing_submitted
from palestra.rewards.table import Rows, cell_f1, same_results
from palestra.tasks.errors import DatabaseError, QueryError
from palestra.tasks.sql.backends import open_guarded
from palestra.tasks.sql.cache import ByteCache
from palestra.tasks.sql.database import Database, database
from palestra.tasks.sql.guarded import Limits, Result
from palestra.tasks.sql.perturb import perturbed
from palestra.tasks.sql.text import is_ordered
from palestra.tasks.task import Task
from palestra.trajectories.model import Score

_SEEDS = range(1, 17)
_GOLD_LIMITS = Limits.lasting(60.0, rows=100_000, result_bytes=64 * 2**20)
_CACHE_BYTES = 256 * 2**20
_ROW_BYTES = 200


@dataclass(frozen=True, slots=True)
class _Judge:
    """One database to run a submission on, with what the gold returns there. Seed 0 is the original."""

    seed: int
    gold: Rows
    quality: int = 0
    """0: the gold returns something else than on the original; 1: the same; 2: nothing."""


_COPIES: ByteCache[Database] = ByteCache(_CACHE_BYTES, lambda copy: len(copy.image))
_JUDGES: ByteCache[tuple[_Judge, ...]] = ByteCache(
    _CACHE_BYTES, lambda judges: _ROW_BYTES * sum(1 + len(j.gold) for j in judges)
)


class ExecutionAccuracy:
    """The strict grader of SQL tasks. `task.data` has database, gold_sql and perhaps gold_variants (a list of
    SQL).

    `copies`: perturbed copies on which the results must agree too. `partial`: also report `parts["partial"]`,
    the F1 of the result's cells on the original database; it never counts into the value.
    """

    name = "sql-execution-accuracy"
    version = "1"

    def __init__(self, copies: int = 2, partial: bool = False) -> None:
        self._copies, self._partial = copies, partial

    def __call__(self, task: Task, submission: Any) -> Score:
        """Score SQL text. Raises GraderError when the gold or the database of the task is at fault."""
        judges = self._judges(task)
        if submission is None or not str(submission).strip():
            return self._with_partial(nothing_submitted(self), judges[0].gold, ())
        if not isinstance(submission, str):
            raise GraderError(f"a submission is SQL text, got {type(submission).__name__}")
        return self._grade(task, judges, submission)

    def _grade(self, task: Task, judges: Sequence[_Judge], sql: str) -> Score:
        ordered = is_ordered(task.data["gold_sql"])
        pairs: list[tuple[Rows, Rows]] = []
        why = ""
        for judge in judges:
            try:
                pairs.append((judge.gold, self._submitted(task, judge, sql).rows))
            except QueryError as error:
                why = f"the submitted SQL fails: {error}"
                break
            if not same_results(pairs, ordered):
                why = _difference(pairs, judge)
                break
        got = pairs[0][1] if pairs else ()
        score = Score(float(not why), True, {}, self.name, self.version, why or _agreement(pairs))
        return self._with_partial(score, judges[0].gold, got)

    def _submitted(self, task: Task, judge: _Judge, sql: str) -> Result:
        limits = Limits.lasting(
            task.budget.command_s, rows=len(judge.gold) + 1, result_bytes=_GOLD_LIMITS.result_bytes
        )
        return _run(_copy(_database(task), judge.seed), sql, limits)

    def _with_partial(self, score: Score, gold: Rows, got: Rows) -> Score:
        return replace(score, parts={"partial": cell_f1(gold, got)}) if self._partial else score

    def _judges(self, task: Task) -> tuple[_Judge, ...]:
        gold = task.data.get("gold_sql")
        if not isinstance(gold, str):
            raise GraderError(f"task {task.id!r} has no gold_sql in its data")
        variants = tuple(task.data.get("gold_variants", ()))
        source = _database(task)
        key = source.key, gold, variants, self._copies
        try:
            return _JUDGES.get(key, lambda: _choose(source, gold, variants, self._copies))
        except QueryError as error:
            raise GraderError(f"task {task.id!r}: the gold SQL fails: {error}") from error


def gold_result(task: Task, sql: str) -> Rows:
    """What the gold SQL returns on the database of the task. Raises GraderError."""
    try:
        rows = _gold_rows(_database(task), sql, ())
    except QueryError as error:
        raise GraderError(f"task {task.id!r}: the gold SQL fails: {error}") from error
    assert rows is not None
    return rows


def submitted_result(task: Task, sql: str) -> Rows:
    """What a submission returns there, within the bounds for gold SQL. Raises QueryError, GraderError."""
    limits = replace(_GOLD_LIMITS, time_s=task.budget.command_s)
    return _run(_database(task), sql, limits).rows


def _database(task: Task) -> Database:
    try:
        return database(task)
    except DatabaseError as error:
        raise GraderError(f"task {task.id!r}: {error}") from error


def _copy(source: Database, seed: int) -> Database:
    if seed == 0:
        return source
    return _COPIES.get((source.key, seed), lambda: replace(source, image=perturbed(source.image, seed)))


def _run(where: Database, sql: str, limits: Limits) -> Result:
    try:
        guarded = open_guarded(where, limits)
    except DatabaseError as error:
        raise GraderError(str(error)) from error
    try:
        return guarded.query(sql)
    finally:
        guarded.close()


def _choose(source: Database, gold: str, variants: tuple[str, ...], copies: int) -> tuple[_Judge, ...]:
    """The original and the best `copies` perturbed copies. Raises QueryError, GraderError."""
    original = _gold_rows(source, gold, variants)
    if original is None:
        raise GraderError(f"the variants of the gold SQL disagree, so the question is ambiguous: {gold}")
    if not original:
        raise GraderError(f"the gold SQL returns no rows, so an empty answer would be right: {gold}")
    found: list[_Judge] = []
    for seed in _SEEDS:
        judge = _candidate(source, seed, gold, variants, original)
        found += [judge] if judge is not None else []
        if sum(j.quality == 0 for j in found) == copies:
            break
    if len(found) < copies:
        raise GraderError(f"the gold SQL runs on only {len(found)} of {len(_SEEDS)} perturbed copies: {gold}")
    return (_Judge(0, original), *sorted(found, key=lambda judge: judge.quality)[:copies])


def _candidate(
    source: Database, seed: int, gold: str, variants: tuple[str, ...], original: Rows
) -> _Judge | None:
    """The perturbed copy `seed` as a judge, or None where the gold fails or is ambiguous on it."""
    try:
        rows = _gold_rows(_copy(source, seed), gold, variants)
    except QueryError:
        return None
    if rows is None:
        return None
    same = same_results([(original, rows)], ordered=False)
    return _Judge(seed, rows, quality=int(same) if rows else 2)


def _gold_rows(where: Database, gold: str, variants: tuple[str, ...]) -> Rows | None:
    """What the gold returns, or None where a variant returns something else."""
    result = _run(where, gold, _GOLD_LIMITS)
    if not result.complete:
        raise GraderError(f"the gold SQL returns more than {_GOLD_LIMITS.rows} rows or 64 MiB: {gold}")
    for variant in variants:
        rows = _run(where, variant, _GOLD_LIMITS).rows
        if not same_results([(result.rows, rows)], is_ordered(gold)):
            return None
    return result.rows


def _agreement(pairs: Sequence[tuple[Rows, Rows]]) -> str:
    return f"the result equals the gold's on the database and on {len(pairs) - 1} perturbed copies"


def _difference(pairs: Sequence[tuple[Rows, Rows]], judge: _Judge) -> str:
    """One sentence: where the result differs from the gold's, and how."""
    gold, got = pairs[-1]
    where = f"on perturbed copy {judge.seed}, though not on the database" if judge.seed else "on the database"
    if len(got) > len(gold):
        return f"{where} the result has more than the {len(gold)} rows of the gold's"
    if len(got) < len(gold):
        return f"{where} the result has {len(got)} rows, the gold's has {len(gold)}"
    if gold and len(got[0]) != len(gold[0]):
        return f"{where} the result has {len(got[0])} columns, the gold's has {len(gold[0])}"
    return f"{where} the values differ: got {str(got[0])[:100]} first, the gold's has {str(gold[0])[:100]}"
