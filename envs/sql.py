"""palestra/Sql-v0: answer a question about a SQLite database by looking around in it and handing in one
SELECT.

The first observation is the question alone. Tools list and describe tables, run a query, and submit the
answer, which is SQL text; grading runs it. The database is a private read-only copy (`tasks/sql/guarded.py`),
so a snapshot is a few names and costs nothing. The anchor is a digest of what the agent has established: the
tables it has seen, those it has described, and the last result or error of a query. The same knowledge
reached by another way is the same anchor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvSetupError
from palestra.envs.tools import ToolError, tool
from palestra.rewards.score import Grader
from palestra.rewards.sql_rules import grader_named
from palestra.tasks.errors import DatabaseError, QueryError
from palestra.tasks.sql.backends import Guarded, open_guarded
from palestra.tasks.sql.database import Database, database
from palestra.tasks.sql.guarded import Limits, Result, Value
from palestra.tasks.sql.schema import Table, quoted
from palestra.tasks.task import Task, TaskSet
from palestra.trajectories.model import Score

_MAX_CONSTANT_ROWS = 50


@dataclass(frozen=True, slots=True)
class _Known:
    """What the agent has established, and its answer."""

    seen: frozenset[str] = frozenset()
    described: frozenset[str] = frozenset()
    last: str = ""
    """The last result or error, as it was shown."""
    answer: str | None = None


class SqlEnv(TaskEnv):
    """Question answering over SQLite. See the module for the tools and the anchor."""

    family: ClassVar[str] = "sql"
    any_thread: ClassVar[bool] = True

    def __init__(
        self,
        tasks: TaskSet | str | None = None,
        grader: Grader | None = None,
        max_rows: int = 20,
        max_chars: int = 2000,
        samples: int = 0,
    ) -> None:
        """`max_rows` and `max_chars` bound what a query shows; `samples` values per column in describe.

        Without a `grader` the task's `rule` decides (rewards/sql_rules.py); without that, grading is strict.
        """
        super().__init__(tasks)
        self._grader = grader
        self._max_rows, self._max_chars, self._samples = max_rows, max_chars, samples
        self._known = _Known()
        self._open: tuple[bytes, Guarded] | None = None

    @tool
    def list_tables(self) -> str:
        """List the tables."""
        names = self._database.tables
        self._known = replace(self._known, seen=frozenset(names))
        return ", ".join(map(quoted, names))

    @tool
    def describe(self, table: str) -> str:
        """Show the columns of a table."""
        found = self._find(table)
        lines = [found.describe(), *(self._sample(found, c.name) for c in found.columns if self._samples)]
        known, name = self._known, frozenset({found.name})
        self._known = replace(known, seen=known.seen | name, described=known.described | name)
        return "\n".join(lines)

    @tool
    def query(self, sql: str) -> str:
        """Run a SELECT and show its rows."""
        shown = render(self._run(sql), self._max_rows, self._max_chars)
        self._known = replace(self._known, last=shown)
        return shown

    @tool
    def submit(self, sql: str) -> str:
        """Hand in the SELECT that answers the question."""
        self._known = replace(self._known, answer=sql)
        self.finish()
        return "submitted"

    def close(self) -> None:
        """Release the copy of the database."""
        if self._open is not None:
            self._open[1].close()
            self._open = None

    def _begin(self, task: Task) -> str:
        self._known = _Known()
        _database_of(task)
        return task.instruction

    def _anchor(self) -> str:
        known = self._known
        parts = [sorted(known.seen), sorted(known.described), known.last, known.answer]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _score(self) -> Score:
        grader = self._grader or grader_named(self.task.data.get("rule", "strict"))
        return grader(self.task, self._known.answer)

    def _freeze(self) -> _Known:
        return self._known

    def _thaw(self, world: _Known) -> None:
        self._known = world

    def solution(self) -> Sequence[str]:
        """Submitting the gold SQL; nothing where the task has none."""
        gold = self.task.data.get("gold_sql")
        return (_submission(gold),) if gold is not None else ()

    def cheats(self) -> Mapping[str, Sequence[str]]:
        """An empty result, and the gold's result as a constant where that is short."""
        if "gold_sql" not in self.task.data:
            return {}
        gold = self._connection.query(self.task.data["gold_sql"])
        slots = ", ".join("NULL" for _ in gold.columns)
        found = {"empty result": (_submission(f"SELECT {slots} WHERE 1 = 0"),)}
        if gold.complete and 0 < len(gold.rows) <= _MAX_CONSTANT_ROWS:
            rows = ", ".join(f"({', '.join(map(_literal, row))})" for row in gold.rows)
            found["constant of the gold's result"] = (_submission(f"VALUES {rows}"),)
        return found

    @property
    def _database(self) -> Database:
        return _database_of(self.task)

    @property
    def _connection(self) -> Guarded:
        """The guarded copy for this task, opened when it is first needed."""
        wanted = self._database
        if self._open is None or self._open[0] != wanted.key:
            self.close()
            self._open = wanted.key, open_guarded(wanted, Limits.lasting(self.task.budget.command_s))
        return self._open[1]

    def _run(self, sql: str) -> Result:
        try:
            return self._connection.query(sql)
        except QueryError as error:
            raise self._failed(str(error)) from None

    def _failed(self, why: str) -> ToolError:
        self._known = replace(self._known, last=f"error: {why}")
        return ToolError(why)

    def _find(self, name: str) -> Table:
        tables = self._database.tables
        by_lower = {t.lower(): t for t in tables}
        if name.strip('"').lower() not in by_lower:
            raise self._failed(f"no such table: {name}")
        return tables[by_lower[name.strip('"').lower()]]

    def _sample(self, table: Table, column: str) -> str:
        sql = f"SELECT DISTINCT {quoted(column)} FROM {quoted(table.name)} LIMIT {self._samples}"
        values = [show(row[0], 24) for row in self._run(sql).rows]
        return f"{quoted(column)}: {', '.join(values)}"

    def __getstate__(self) -> Mapping[str, Any]:
        return self.__dict__ | {"_open": None}


def render(result: Result, max_rows: int, max_chars: int) -> str:
    """A header line, rows as "a | b", and how many more there are."""
    if not result.rows:
        return "(no rows)"
    lines, room = [_line(result.columns, max_chars)], max_chars
    for row in result.rows[:max_rows]:
        line = _line(row, max_chars)
        room -= len(line) + 1
        if room < 0 and len(lines) > 1:
            break
        lines.append(line)
    hidden = len(result.rows) - (len(lines) - 1)
    if hidden or not result.complete:
        lines.append(f"... {hidden} more rows" if result.complete else "... many more rows")
    return "\n".join(lines)


def _line(values: Sequence[Value], max_chars: int) -> str:
    return _cut(" | ".join(show(value) for value in values), max_chars)


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[:max_chars] + "..."


def _database_of(task: Task) -> Database:
    try:
        return database(task)
    except DatabaseError as error:
        raise EnvSetupError(f"task {task.id!r}: {error}") from error


def show(value: Value, max_chars: int = 200) -> str:
    """One value on one line, cut to `max_chars`."""
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return repr(float(f"{value:.12g}"))
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return _cut(str(value).replace("\r", "").replace("\n", "\\n"), max_chars)


def _submission(sql: str) -> str:
    return json.dumps({"name": "submit", "arguments": {"sql": sql}})


def _literal(value: Value) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
