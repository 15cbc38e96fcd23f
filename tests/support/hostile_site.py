"""A site of one page, whose content is given: for tests of what pages may try."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

from palestra.envs.web.gateway import App
from palestra.tasks.task import Budget, Task
from palestra.trajectories.model import Score

SLOW_S = 60.0
LATE_S = 0.4
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAAAAACoWZBhAAAAEElEQVR4nGOMYoABJgaaMwErDABuaONAZwAAAABJRU5ErkJggg=="
)
"""10 x 10 pixels; /late.png comes after LATE_S."""


class HostileSite:
    """Pages by path. The state is how often /win was posted; the score is whether it was."""

    host, start = "hostile.test", "/"

    def __init__(self, pages: Mapping[str, str]) -> None:
        self.pages, self.wins = pages, 0
        self.app: App = self._answer

    def save(self) -> bytes:
        """How often /win was posted."""
        return str(self.wins).encode()

    def load(self, state: bytes) -> None:
        """Put it back."""
        self.wins = int(state)

    def grade(self, task: Task, answer: str | None) -> Score:
        """Whether /win was posted."""
        return Score(float(self.wins > 0), True, {}, "hostile", "1", f"{self.wins} posts")

    async def _answer(self, scope: dict[str, Any], receive: App, send: App) -> None:
        path, status = scope["path"], 200
        body = self.pages.get(path, "<p>nothing</p>").encode()
        headers = [(b"content-type", b"text/html; charset=utf-8")]
        if path == "/win" and scope["method"] == "POST":
            self.wins += 1
        elif path == "/slow":
            await asyncio.sleep(SLOW_S)
        elif path == "/round":
            status, headers = 302, [*headers, (b"location", b"/round")]
        elif path == "/file":
            headers = [
                (b"content-type", b"application/zip"),
                (b"content-disposition", b'attachment; filename="x.zip"'),
            ]
        elif path == "/worker.js":
            headers = [(b"content-type", b"text/javascript")]
        elif path == "/late.png":
            await asyncio.sleep(LATE_S)
            headers, body = [(b"content-type", b"image/png")], PICTURE
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def build(pages: Mapping[str, str]) -> HostileSite:
    """For `task.data["app"]`."""
    return HostileSite(pages)


def hostile_task(body: str = "", command_s: float = 30.0, pages: Mapping[str, str] | None = None) -> Task:
    """A task on a page with `body`, and others by path."""
    named = {"/": f"<title>hostile</title><main>{body}</main>", **(pages or {})}
    return Task(
        id="hostile/1",
        family="web",
        env="palestra/Web-v0",
        split="test",
        instruction="Look around.",
        data={"app": {"builder": "hostile_site:build", "args": {"pages": named}}},
        budget=Budget(turns=40, command_s=command_s),
    )
