"""Applications as targets: any ASGI or WSGI application in this process, judged by the state that it leaves behind.

A `WebApp` is an application with its state, which can be saved, put back and graded. The three sites of `envs/web/apps`
are known by name (`task.data["site"]`); any other comes from a function, `task.data["app"] = {"builder":
"package.module:function", "args": {...}}`. Its state begins anew with every episode and is compared at the end, so that
neither the page nor the agent comes near the reward.
"""

from __future__ import annotations

import hashlib
import importlib
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from typing import Protocol

from palestra.envs.errors import EnvSetupError
from palestra.envs.web.gateway import App, uncached
from palestra.envs.web.observation import View
from palestra.envs.web.session import Session
from palestra.envs.web.tab import STEP_MS
from palestra.rewards.web import Outcome, StateCheck
from palestra.tasks.errors import TaskError
from palestra.tasks.registry import import_function
from palestra.tasks.task import Task
from palestra.tasks.web.actions import done
from palestra.tasks.web.sites.build import initial, opened
from palestra.trajectories.model import Score

CLASSES = {"shop": "Shop", "forum": "Forum", "desk": "Desk"}


class WebApp(Protocol):
    """An application and what lies behind it. `host`: the name it is reached by; `start`: its first page."""

    host: str
    start: str
    app: App

    def save(self) -> bytes:
        """The whole state."""
        ...

    def load(self, state: bytes) -> None:
        """Put a state back."""
        ...

    def grade(self, task: Task, answer: str | None) -> Score:
        """Judge the state. Raises GraderError where that is impossible."""
        ...


class OwnSite:
    """One of our three sites, on a database in memory."""

    start = "/"

    def __init__(self, task: Task) -> None:
        """Raises EnvSetupError where there is no such site or its packages are missing."""
        name = str(task.data["site"])
        if name not in CLASSES:
            raise EnvSetupError(
                f"task {task.id!r}: there is no site {name!r}; there are {', '.join(CLASSES)}"
            )
        try:
            self._database = opened(initial(name, int(task.data["seed"])))
            module = importlib.import_module(f"palestra.envs.web.apps.{name}")
        except (sqlite3.Error, ValueError) as error:
            raise EnvSetupError(f"task {task.id!r}: the site's database cannot be made: {error}") from error
        except ModuleNotFoundError as error:
            raise EnvSetupError(f"{error.name} is not installed: pip install 'palestra[web]'") from None
        self.host = f"{name}.test"
        self.app: App = getattr(module, CLASSES[name])(
            self._database, str(task.data.get("user", "robin"))
        ).app
        self._grader = StateCheck()

    def save(self) -> bytes:
        """The database's image."""
        return self._database.serialize()

    def load(self, state: bytes) -> None:
        """Put an image back."""
        self._database.deserialize(state)

    def grade(self, task: Task, answer: str | None) -> Score:
        """Compare the database with the goal's."""
        return self._grader(task, Outcome(self.save(), answer))


class SiteTarget:
    """One episode on a `WebApp`. `task.data`: site and seed, or app; gold and near_misses where they are known."""

    warm = ""
    viewport = (1024, 768)
    ignore = ""

    def __init__(self, task: Task) -> None:
        self.web = OwnSite(task) if "site" in task.data else _built(task)
        self.sites: Mapping[str, App] = {self.web.host: uncached(self.web.app)}

    async def begin(self, session: Session, task: Task) -> tuple[str, View]:
        """Remove what the last episode left in the browser, and open the site."""
        await session.forget()
        await session.goto(f"http://{self.web.host}{self.web.start}")
        return task.instruction, await session.view()

    async def after_step(self, session: Session) -> bool:
        """Let time pass; only the agent ends an episode."""
        await session.tab.advance(STEP_MS)
        return False

    async def grade(self, session: Session, task: Task, answer: str | None) -> Score:
        """What the application says of its state."""
        return self.web.grade(task, answer)

    def state(self) -> str:
        """Digest of what lies behind the pages."""
        return hashlib.sha256(self.web.save()).hexdigest()

    def solve(self, task: Task, view: View) -> Generator[str, View, None]:
        """The gold actions of the task; the pages that are sent back are not looked at."""
        for action in task.data.get("gold", ()):
            _ = yield action

    def cheats(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Handing in at once, and the task's near misses."""
        at_once = {"at once": (done(),)} if task.data.get("gold") else {}
        return at_once | dict(task.data.get("near_misses", {}))


def _built(task: Task) -> WebApp:
    try:
        source = task.data["app"]
        built: WebApp = import_function(source["builder"])(**source.get("args", {}))
    except (TaskError, KeyError, TypeError) as error:
        raise EnvSetupError(f"task {task.id!r}: its application cannot be made: {error!r}") from error
    return built
