"""WebArena's tasks as targets, for users who host its sites: strings, addresses and page contents are checked.

`task.data["webarena"]` has start_url, eval (the file's own) and sites (address by host). Locators of `program_html` are
expressions of the task file; they run in an isolated world of the page, where no script of the page can answer for it.
Helper functions of WebArena's own code ("func:...") cannot be had: such tasks are not judged.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from palestra.envs.tools import ToolError
from palestra.envs.web.gateway import App
from palestra.envs.web.observation import View
from palestra.envs.web.session import Session
from palestra.envs.web.tab import STEP_MS
from palestra.envs.web.upstream import upstream
from palestra.rewards.score import GraderError
from palestra.rewards.webarena import KINDS, page_content, string_match, url_match
from palestra.tasks.task import Task
from palestra.trajectories.model import Score

NAME, VERSION = "webarena", "1"


class WebArena:
    """One episode of one task of WebArena."""

    warm = ""
    viewport = (1280, 720)
    ignore = ""

    def __init__(self, task: Task) -> None:
        self._data: dict[str, Any] = task.data["webarena"]
        self.sites: Mapping[str, App] = {host: upstream(url) for host, url in self._data["sites"].items()}
        self._last = ""

    async def begin(self, session: Session, task: Task) -> tuple[str, View]:
        """Open the start pages, each in a tab."""
        await session.forget()
        first, *others = self._data["start_url"].split(" |AND| ")
        await session.goto(first)
        for url in others:
            await session.open_tab(url)
        return task.instruction, await session.view()

    async def after_step(self, session: Session) -> bool:
        """Let time pass; only the agent ends an episode."""
        await session.tab.advance(STEP_MS)
        return False

    async def grade(self, session: Session, task: Task, answer: str | None) -> Score:
        """All of the task's checks. Raises GraderError where one of them cannot be made."""
        wanted = self._data["eval"]
        parts = {
            kind: float(await self._check(kind, wanted, session, answer or ""))
            for kind in wanted["eval_types"]
        }
        return Score(float(all(parts.values())), True, parts, NAME, VERSION, f"answer {answer!r}"[:300])

    async def _check(self, kind: str, wanted: Mapping[str, Any], session: Session, answer: str) -> bool:
        if kind == "string_match":
            return string_match(answer, wanted["reference_answers"])
        if kind == "url_match":
            return url_match(
                session.tab.page.url, wanted["reference_url"], wanted.get("url_note", "GOLD in PRED")
            )
        if kind == "program_html":
            return all([await self._content(check, session) for check in wanted["program_html"]])
        raise GraderError(f"there is no check {kind!r}; there are {', '.join(KINDS)}")

    async def _content(self, check: Mapping[str, Any], session: Session) -> bool:
        url, locator = check["url"], check["locator"]
        if url.startswith("func:") or locator.startswith("func:"):
            raise GraderError(f"this task needs a function of WebArena's code: {url} {locator}")
        try:
            if url != "last":
                await session.goto(url)
            text = await session.tab.ask("read", locator or "document.body.outerHTML")
        except ToolError as error:
            raise GraderError(f"the page {url} could not be looked at: {error}") from error
        return page_content(str(text), check["required_contents"])

    def state(self) -> str:
        """Unknown: it is on the servers."""
        return ""

    def solve(self, task: Task, view: View) -> Generator[str, View, None]:
        """None is known."""
        yield from ()

    def cheats(self, task: Task) -> Mapping[str, Sequence[str]]:
        """None are known."""
        return {}
