"""A stage to play puppets on: engine, proxy, runner and store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.rollouts.harnesses import chat_client
from palestra.rollouts.local import Local, local
from palestra.rollouts.testing import Puppet, tool_call
from palestra.trajectories.store import Store

Stage = Callable[..., Awaitable[Local]]

SOLVED = (tool_call("say", text="a"), tool_call("submit", value=1.0))


@pytest.fixture(autouse=True)
def puppets() -> list[Puppet]:
    """Every puppet made in this test."""
    Puppet.made.clear()
    return Puppet.made


@pytest.fixture(scope="session")
def rendering(tmp_path_factory: pytest.TempPathFactory) -> Rendering:
    return Rendering.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
async def stage(rendering: Rendering) -> AsyncIterator[Stage]:
    """`await stage(replies or engine, harness=, store=, concurrency=)`: a running stack, closed at the end."""
    async with AsyncExitStack() as stack:

        async def make(replies: Any = SOLVED, **options: Any) -> Local:
            has_engine = hasattr(replies, "generate")
            engine = replies if has_engine else ScriptedEngine(rendering, replies)
            return await stack.enter_async_context(local(engine, rendering, **options))

        yield make


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", write=True) as opened:
        yield opened


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients ask again three times, at once."""
    monkeypatch.setattr(chat_client, "RETRIES", 3)
    monkeypatch.setattr(chat_client, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(chat_client, "LONGEST_TOLD_S", 0.0)


@pytest.fixture(params=["own thread", "crew"])
def either_host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worlds live in threads of their own, and then in one of many."""
    monkeypatch.setattr(Puppet, "any_thread", request.param == "crew")
