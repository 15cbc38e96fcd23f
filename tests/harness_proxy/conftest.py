"""A tiny rendering, a proxy without a socket, and the one check that every recording must pass."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pytest

from palestra.harness_proxy.engines.scripted import Script, ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.sessions import Recording, Session
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Sampling


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def rendering(model_dir: Any) -> Rendering:
    return Rendering.load(model_dir)


@dataclass
class Answer:
    """What a caller gets."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def message(self) -> Any:
        assert self.status == 200, self.body
        return self.json["choices"][0]["message"]


class Bench:
    """A proxy and its engine, called through the ASGI application."""

    def __init__(self, proxy: Proxy, engine: ScriptedEngine) -> None:
        self.proxy, self.engine = proxy, engine
        self._opened = 0

    def open(self, **options: Any) -> Session:
        self._opened += 1
        chosen: dict[str, Any] = {"mode": "train", "sampling": Sampling(max_tokens=512, seed=7)} | options
        return self.proxy.open(f"rollout-{self._opened}", **chosen)

    async def ask(self, session: Session, messages: Any, headers: Any = None, **extra: Any) -> Answer:
        body = orjson.dumps({"model": "m", "messages": messages, **extra})
        return await self.raw(body, {"authorization": f"Bearer {session.key}"} | (headers or {}))

    async def raw(
        self,
        body: bytes,
        headers: Mapping[str, str],
        path: str = "/v1/chat/completions",
        method: str = "POST",
        leave: bool = False,
    ) -> Answer:
        """One request; with `leave` the caller is gone before the reply comes."""
        events: list[MutableMapping[str, Any]] = []
        inbox = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> MutableMapping[str, Any]:
            if inbox:
                return inbox.pop()
            if leave:
                return {"type": "http.disconnect"}
            return await _never()

        async def send(event: MutableMapping[str, Any]) -> None:
            events.append(event)

        fields = [(k.encode(), v.encode("latin-1")) for k, v in headers.items()]
        await self.proxy.app(
            {"type": "http", "method": method, "path": path, "headers": fields}, receive, send
        )
        if not events:
            return Answer(0, {}, b"")
        heads = {k.decode(): v.decode() for k, v in events[0]["headers"]}
        return Answer(events[0]["status"], heads, b"".join(e["body"] for e in events[1:]))

    def close(self, session: Session) -> Recording:
        """Close, and check that the recording is what the engine was given and gave."""
        recording = self.proxy.close(session)
        check_faithful(recording, self.engine, session.rollout_id)
        return recording


async def _never() -> MutableMapping[str, Any]:
    waiting: asyncio.Future[MutableMapping[str, Any]] = asyncio.get_running_loop().create_future()
    return await waiting


def check_faithful(recording: Recording, engine: ScriptedEngine, session: str) -> None:
    """Every call's path is one engine call, token by token, and every engine call is recorded at most
    once."""
    graph = TokenGraph(recording.nodes)
    seen = [c for c in engine.calls if c.session == session and c.generation is not None]
    taken: set[int] = set()
    for call in recording.calls:
        path = graph.path_ids(call.node_id).tolist()
        matches = [i for i, c in enumerate(seen) if i not in taken and [*c.prompt_ids, *_ids(c)] == path]
        assert matches, f"call {call.seq} is not what the engine saw"
        taken.add(matches[0])
        node = graph.nodes[call.node_id]
        assert node.token_ids[node.sampled].tolist() == _ids(seen[matches[0]])
        assert call.prompt_tokens == len(seen[matches[0]].prompt_ids)
        assert call.effective == seen[matches[0]].sampling
    sampled_nodes = [n.node_id for n in recording.nodes if n.sampled.any()]
    assert sorted(c.node_id for c in recording.calls) == sampled_nodes
    assert all(np.isfinite(n.logprobs).all() for n in recording.nodes)


def _ids(call: Any) -> list[int]:
    return list(call.generation.token_ids)


@pytest.fixture
async def bench(rendering: Rendering) -> AsyncIterator[Callable[..., Awaitable[Bench]]]:
    """Makes a Bench of a script."""
    proxies: list[Proxy] = []

    async def make(script: Script, *, rendering: Rendering = rendering, **engine: Any) -> Bench:
        scripted = ScriptedEngine(rendering, script, **engine)
        proxy = Proxy(scripted, rendering, max_body_bytes=1 << 20, retry_after_s=0.01)
        await proxy.probe()
        proxies.append(proxy)
        return Bench(proxy, scripted)

    yield make
    for proxy in proxies:
        await proxy.aclose()


@dataclass
class Stand:
    """A proxy on a socket with a scripted engine."""

    proxy: Proxy
    engine: ScriptedEngine

    def open(self, **options: Any) -> Session:
        chosen: dict[str, Any] = {"mode": "train", "sampling": Sampling(max_tokens=512)} | options
        return self.proxy.open("r", **chosen)

    def close(self, session: Session) -> Recording:
        """Close, and check that the recording is what the engine was given and gave."""
        recording = self.proxy.close(session)
        check_faithful(recording, self.engine, session.rollout_id)
        return recording

    def close_unbroken(self, session: Session) -> Recording:
        """Close, and check besides that all calls are one branch without a drift, and trained."""
        recording = self.close(session)
        calls = recording.calls
        assert [c.drift for c in calls] == [None] * len(calls)
        assert [c.prompt_mode for c in calls] == ["render"] + ["bridge"] * (len(calls) - 1)
        assert list(TokenGraph(recording.nodes).leaves()) == [calls[-1].node_id]
        assert all(c.delivered and c.role == "agent" for c in calls)
        assert recording.failure is None
        return recording


@pytest.fixture
async def stand(model_dir: Any) -> AsyncIterator[Callable[..., Awaitable[Stand]]]:
    """Makes a Stand of a script; the model thinks."""
    thinking = Rendering.load(model_dir, enable_thinking=True)
    proxies: list[Proxy] = []

    async def make(script: Script, **engine: Any) -> Stand:
        scripted = ScriptedEngine(thinking, script, **engine)
        proxy = Proxy(scripted, thinking, retry_after_s=0.01)
        await proxy.start()
        proxies.append(proxy)
        return Stand(proxy, scripted)

    yield make
    for proxy in proxies:
        await proxy.aclose()


def _tool_call(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "shell", "arguments": {arguments}}}\n</tool_call>'


@pytest.fixture
def session_script() -> list[str]:
    """Thinking, text and an oddly spelled call; two parallel calls; the end."""
    odd = _tool_call('{"b":  "\\u00e9\\/", "command": "ls", "n": 10000.0}')
    two = "\n".join(_tool_call(f'{{"command": "cat {name}"}}') for name in "ab")
    return [
        f"<think>\nFirst  look.\n</think>\n\nLet me look.  \n{odd}",
        f"<think>\nBoth.\n</think>\n\n{two}",
        "<think>\nEnough.\n</think>\n\nThere are 42.",
    ]
