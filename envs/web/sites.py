"""Sites as targets: an application in this process, a database that is copied for every episode, a check of its state.

The three sites of `envs/web/apps` are known by name. The database of an episode lives in memory; it begins as a copy
of the initial image and is compared with the goal's at the end, so that neither the page nor the agent comes near the
reward.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from palestra.envs.errors import EnvSetupError
from palestra.envs.web.gateway import App, uncached
from palestra.envs.web.observation import View
from palestra.envs.web.session import Session
from palestra.envs.web.tab import STEP_MS
from palestra.rewards.web import Outcome, StateCheck
from palestra.tasks.task import Task
from palestra.tasks.web.sites.build import initial, opened
from palestra.trajectories.model import Score

CLASSES = {"shop": "Shop", "forum": "Forum", "desk": "Desk"}


class SiteTarget:
    """One episode on one of our sites. `task.data`: site, seed, user, and what `StateCheck` takes."""

    warm = ""
    viewport = (1024, 768)
    ignore = ""

    def __init__(self, task: Task) -> None:
        name = str(task.data["site"])
        if name not in CLASSES:
            raise EnvSetupError(
                f"task {task.id!r}: there is no site {name!r}; there are {', '.join(CLASSES)}"
            )
        try:
            self.database = opened(initial(name, int(task.data["seed"])))
        except (sqlite3.Error, ValueError) as error:
            raise EnvSetupError(f"task {task.id!r}: the site's database cannot be made: {error}") from error
        self.host = f"{name}.test"
        self.sites: Mapping[str, App] = {self.host: uncached(_application(name, self.database, task))}
        self._grader = StateCheck()
        self._digest = (-1, "")

    async def begin(self, session: Session, task: Task) -> str:
        """Remove what the last episode left in the browser, and open the site."""
        await session.forget()
        await session.goto(f"http://{self.host}/")
        return task.instruction

    async def after_step(self, session: Session) -> bool:
        """Let time pass; only the agent ends an episode."""
        await asyncio.shield(session.tab.advance(STEP_MS))
        return False

    async def grade(self, session: Session, task: Task, answer: str | None) -> Score:
        """Compare the database with the goal's."""
        return self._grader(task, Outcome(self.database.serialize(), answer))

    def state(self) -> str:
        """Digest of the database; taken again only after a change."""
        changes = self.database.total_changes
        if self._digest[0] != changes:
            self._digest = changes, hashlib.sha256(self.database.serialize()).hexdigest()
        return self._digest[1]

    def freeze(self) -> Any:
        """The database's image."""
        return self.database.serialize()

    def thaw(self, frozen: Any) -> None:
        """Put an image back."""
        self.database.deserialize(frozen)
        self._digest = (-1, "")

    def solve(self, task: Task, view: View) -> Generator[str, View, None]:
        """The gold actions of the task."""
        for action in task.data.get("gold", ()):
            yield action  # what is sent back, the page, is not looked at

    def cheats(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Handing in at once, and the task's near misses."""
        at_once = (
            {}
            if not task.data.get("gold")
            else {"at once": ('{"name": "submit", "arguments": {"answer": ""}}',)}
        )
        return at_once | dict(task.data.get("near_misses", {}))


def _application(name: str, database: sqlite3.Connection, task: Task) -> App:
    try:
        module = importlib.import_module(f"palestra.envs.web.apps.{name}")
    except ModuleNotFoundError as error:
        raise EnvSetupError(f"{error.name} is not installed: pip install 'palestra[web]'") from None
    app: App = getattr(module, CLASSES[name])(database, str(task.data.get("user", "robin"))).app
    return app
