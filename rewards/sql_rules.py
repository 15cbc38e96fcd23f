"""When benchmarks call two SQL results equal: the rules of BIRD, Spider's test suites and Spider 2.0, each by its name.

They disagree with one another, and with what a question asks for; tests/rewards/test_sql_rules.py shows where, case by
case. Use them to compare with published numbers. To train, use `ExecutionAccuracy` (rewards/sql.py), which is strict
where these can be gamed: BIRD's sets forget repeated rows and order, Spider 2.0 takes any number of extra columns.

    BIRD         set(gold rows) == set(submitted rows)                        bird-bench/mini_dev, evaluation_ex.py
    Spider       multisets of rows, columns in any order; lists where the     taoyds/test-suite-sql-eval, exec_eval.py
                 gold has ORDER BY anywhere; DISTINCT is dropped from both
    Spider 2.0   each gold column equals some submitted column within 0.01    xlang-ai/Spider2, evaluate.py
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Literal, get_args

from palestra.rewards.score import Grader, GraderError, nothing_submitted
from palestra.rewards.sql import ExecutionAccuracy, gold_result, submitted_result
from palestra.rewards.table import Row, Rows
from palestra.tasks.errors import QueryError
from palestra.tasks.sql.guarded import Value
from palestra.tasks.task import Task
from palestra.trajectories.model import Score

Rule = Literal["strict", "bird", "spider", "spider2"]
_SPIDER2_TOLERANCE = 1e-2
_MAX_COLUMNS = 8
"""Spider's rule tries every order of columns; for wider results it keeps the order that they have."""
_DISTINCT = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*")|\bdistinct\b""", re.IGNORECASE)


def grader_named(rule: str) -> Grader:
    """The grader of a rule. Raises GraderError for an unknown one."""
    if rule == "strict":
        return ExecutionAccuracy()
    if rule not in get_args(Rule):
        raise GraderError(f"there is no rule {rule!r}; the rules are {', '.join(get_args(Rule))}")
    return OfficialRule(rule)


def bird_equal(gold: Rows, got: Rows) -> bool:
    """BIRD's execution accuracy: equal as sets of rows, columns in their order."""
    return set(gold) == set(got)


def spider_equal(gold: Rows, got: Rows, ordered: bool) -> bool:
    """The test suites' rule: the same rows as often under some order of columns; in the same order if `ordered`."""
    if not gold and not got:
        return True
    if len(gold) != len(got) or len(gold[0]) != len(got[0]):
        return False
    width = len(gold[0])
    orders = permutations(range(width)) if width <= _MAX_COLUMNS else iter([tuple(range(width))])
    same: Callable[[Sequence[Row]], bool] = (
        (lambda rows: list(gold) == rows) if ordered else (lambda rows: Counter(gold) == Counter(rows))
    )
    return any(same([tuple(row[i] for i in order) for row in got]) for order in orders)


def spider2_equal(gold: Rows, got: Rows, ignore_order: bool = True, columns: Sequence[int] = ()) -> bool:
    """Spider 2.0's rule: each gold column (or those in `columns`) equals some submitted column.

    Numbers are equal within 0.01; rows count in their order unless `ignore_order`, each column by itself.
    """
    wanted = list(zip(*gold, strict=True)) if gold else []
    given = list(zip(*got, strict=True)) if got else []
    if columns:
        wanted = [wanted[i] for i in columns if i < len(wanted)]
    if len(gold) != len(got):
        return False
    return all(any(_near(a, b, ignore_order) for b in given) for a in wanted)


def without_distinct(sql: str) -> str:
    """The statement without the word DISTINCT outside of quotes, as Spider's evaluation strips it."""
    return _DISTINCT.sub(lambda found: found.group(1) or "", sql)


class OfficialRule:
    """A benchmark's own rule on the database of the task, without perturbed copies. Empty equals empty, as there."""

    version = "1"

    def __init__(self, rule: str) -> None:
        """`rule`: bird, spider or spider2."""
        self.name = f"sql-{rule}"
        self._rule = rule

    def __call__(self, task: Task, submission: object) -> Score:
        """Score SQL text. Raises GraderError where the gold or the database is at fault."""
        if not isinstance(submission, str) or not submission.strip():
            return nothing_submitted(self)
        strip = without_distinct if self._rule == "spider" else str
        gold_sql = str(task.data.get("gold_sql", ""))
        gold = gold_result(task, strip(gold_sql))
        try:
            got = submitted_result(task, strip(submission))
        except QueryError as error:
            return Score(0.0, True, {}, self.name, self.version, f"the submitted SQL fails: {error}")
        equal = self._equal(task, gold, got, gold_sql)
        evidence = f"by the rule of {self._rule} the results are {'equal' if equal else 'different'}"
        return Score(float(equal), True, {}, self.name, self.version, evidence)

    def _equal(self, task: Task, gold: Rows, got: Rows, gold_sql: str) -> bool:
        if self._rule == "bird":
            return bird_equal(gold, got)
        if self._rule == "spider":
            return spider_equal(gold, got, "order by" in gold_sql.lower())
        ignore_order = bool(task.data.get("ignore_order", True))
        return spider2_equal(gold, got, ignore_order, task.data.get("condition_cols", ()))


def _near(a: Sequence[Value], b: Sequence[Value], ignore_order: bool) -> bool:
    if ignore_order:
        a, b = (sorted(v, key=lambda x: (x is None, str(x), isinstance(x, int | float))) for v in (a, b))
    return all(map(_near_cell, a, b))


def _near_cell(a: Value, b: Value) -> bool:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, abs_tol=_SPIDER2_TOLERANCE)
    return a == b
