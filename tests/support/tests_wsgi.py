"""A WSGI application of ten lines as a world: it remembers one word."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from palestra.envs.web.gateway import App, wsgi
from palestra.tasks.task import Task
from palestra.trajectories.model import Score

PAGE = b'<form><input name=word aria-label="word"><button>Say</button></form>'


class Echo:
    """Scores 1 once "hello" was said."""

    host, start = "echo.test", "/"

    def __init__(self) -> None:
        self.word = ""
        self.app: App = wsgi(self._answer)

    def save(self) -> bytes:
        """The word."""
        return self.word.encode()

    def load(self, state: bytes) -> None:
        """Put it back."""
        self.word = state.decode()

    def grade(self, task: Task, answer: str | None) -> Score:
        """Whether the word is hello."""
        return Score(float(self.word == "hello"), True, {}, "echo", "1", self.word)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.word = parse_qs(environ["QUERY_STRING"]).get("word", [self.word])[0]
        start_response("200 OK", [("content-type", "text/html")])
        return [PAGE]


def build() -> Echo:
    """For `task.data["app"]`."""
    return Echo()
