"""What a task of the web world plays on: where its pages come from, and what its outcome is measured by."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Protocol

from palestra.envs.web.gateway import App
from palestra.envs.web.observation import View
from palestra.envs.web.session import Session
from palestra.tasks.task import Task
from palestra.trajectories.model import Score


class WebTarget(Protocol):
    """One episode's pages and judge. Methods that are coroutines run in the browser's event loop."""

    warm: str
    """Names the page that an episode begins with where the page can be used again; else empty."""
    viewport: tuple[int, int]
    ignore: str
    """CSS selector of what is not shown to the agent."""
    sites: Mapping[str, App]
    """Applications by host name."""

    async def begin(self, session: Session, task: Task) -> tuple[str, View]:
        """Bring the session to the start of the task; returns the instruction and the first look."""
        ...

    async def after_step(self, session: Session) -> bool:
        """Let time pass in the page; True where the task has ended by itself."""
        ...

    async def grade(self, session: Session, task: Task, answer: str | None) -> Score:
        """Judge the episode as it stands, from outside of the page."""
        ...

    def state(self) -> str:
        """Names the state behind the pages."""
        ...

    def solve(self, task: Task, view: View) -> Generator[str, View, None]:
        """Actions that solve the task; `view` is what the agent sees, renewed through `send`."""
        ...

    def cheats(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Actions that come near, each of which must score 0."""
        ...
