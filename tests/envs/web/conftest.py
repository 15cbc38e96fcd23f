"""Environments on a real browser; all of these tests run in one worker, which starts one browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from browsers import browser
from needs import need
from palestra.envs.web.env import WebEnv
from palestra.tasks.task import Task

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One group for everything in this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("palestra/Web-v0"))


@pytest.fixture
def start() -> Iterator[Callable[[Task], WebEnv]]:
    """start(task): an environment in which it has begun; all are closed at the end."""
    need(browser(), "Chromium and the extra `web`: tests/services/chromium.sh")
    started: list[WebEnv] = []

    def begin(task: Task) -> WebEnv:
        env = WebEnv()
        started.append(env)
        env.reset(seed=0, options={"task": task})
        return env

    yield begin
    for env in started:
        env.close()
