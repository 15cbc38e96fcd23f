"""Other ways into the same databases: schemas of thousands of tables, and SQL run in the middle of a text.

palestra/SqlBrowse-v0  lists tables page by page, and searches tables and columns by name.
palestra/SqlReex-v0    understands text with tags, as ReEx-SQL does (Dai et al. 2025, arXiv:2505.12768): each
                       <intermediate_sql> is answered with a <result> of up to three rows, <final_sql> is the answer.
                       Only the last tag of a reply counts. `parts["explored"]` credits queries that ran.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from palestra.envs.sql import SqlEnv, render
from palestra.envs.tools import ToolError, tool
from palestra.rewards.sql_partial import exploration
from palestra.tasks.errors import QueryError
from palestra.tasks.sql.schema import quoted
from palestra.tasks.task import Task
from palestra.trajectories.model import Score

PAGE = 50
"""Names on a page."""
_TAG = re.compile(r"<(intermediate_sql|final_sql)>(.*?)</\1>", re.DOTALL)
_REEX_ROWS = 3
_REEX = (
    "Think in <think></think>. Look at the database with <intermediate_sql>SELECT ...</intermediate_sql>; its result "
    "comes in <result></result>. Answer with <final_sql>SELECT ...</final_sql>."
)


class SqlBrowseEnv(SqlEnv):
    """For databases whose list of tables is too long to read."""

    @tool
    def list_tables(self, matching: str = "", page: int = 1) -> str:
        """List tables whose name has a text in it, 50 to a page."""
        names = [name for name in self._database.tables if matching.lower() in name.lower()]
        return self._page(names, page, "tables")

    @tool
    def find_columns(self, matching: str, page: int = 1) -> str:
        """List columns whose name has a text in it, 50 to a page."""
        wanted = matching.lower()
        found = [
            f"{quoted(table.name)}.{quoted(column.name)}"
            for table in self._database.tables.values()
            for column in table.columns
            if wanted in column.name.lower()
        ]
        return self._page(found, page, "columns", tables=False)

    def _page(self, names: list[str], page: int, what: str, *, tables: bool = True) -> str:
        pages = max(1, -(-len(names) // PAGE))
        if not 1 <= page <= pages:
            raise ToolError(f"there is no page {page} of {pages}")
        shown = names[(page - 1) * PAGE : page * PAGE]
        seen = frozenset(shown) if tables else frozenset(name.partition(".")[0].strip('"') for name in shown)
        self._known = replace(self._known, seen=self._known.seen | seen)
        lines = ", ".join(map(quoted, shown) if tables else shown) or f"no {what}"
        return lines if pages == 1 else f"{lines}\npage {page} of {pages}, {len(names)} {what}"


class SqlReexEnv(SqlEnv):
    """Reasoning in text, with SQL executed where it stands."""

    def _begin(self, task: Task) -> str:
        self._outcomes: tuple[bool, ...] = ()
        return f"{super()._begin(task)}\n{_REEX}"

    def _on_text(self, text: str) -> str:
        found = list(_TAG.finditer(text))
        if not found:
            raise ToolError(f"there is neither <intermediate_sql> nor <final_sql> in it. {_REEX}")
        tag, sql = found[-1].groups()
        if tag == "final_sql":
            return self.submit(sql.strip())
        return f"<result>\n{self._explore(sql.strip())}\n</result>"

    def _explore(self, sql: str) -> str:
        try:
            shown = render(self._connection.query(sql), _REEX_ROWS, self._max_chars)
        except QueryError as error:
            self._outcomes += (False,)
            shown = f"error: {error}"
        else:
            self._outcomes += (True,)
        self._known = replace(self._known, last=shown)
        return _harmless(shown)

    def _state(self) -> str:
        return f"{super()._state()} {self._outcomes}"

    def _score(self) -> Score:
        score = super()._score()
        return replace(score, parts={**score.parts, "explored": exploration(self._outcomes)})

    def _freeze(self) -> Any:
        return super()._freeze(), self._outcomes

    def _thaw(self, world: Any) -> None:
        known, self._outcomes = world
        super()._thaw(known)


def _harmless(shown: str) -> str:
    """Data cannot pretend to be a tag."""
    return re.sub(
        r"</?(think|result|intermediate_sql|final_sql)>", lambda m: m.group().replace("<", "‹"), shown
    )
