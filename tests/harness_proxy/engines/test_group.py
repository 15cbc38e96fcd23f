"""Several engines as one: routing, lines, engines that die and come back, updates of weights."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palestra.harness_proxy.engines.base import EngineError, EngineFullError, EngineUnavailableError
from palestra.harness_proxy.engines.group import EngineGroup
from palestra.harness_proxy.engines.remote import CompletionsEngine
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.trajectories.model import Sampling

SAMPLING = Sampling(max_tokens=4)


class Letters:
    """An encoder of characters."""

    stop_token_ids: tuple[int, ...] = (0,)

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))


def engine(reply: Any = "ok", **options: Any) -> ScriptedEngine:
    return ScriptedEngine(Letters(), reply if callable(reply) else lambda prompt, session: reply, **options)


async def ask(group: EngineGroup, session: str) -> list[int]:
    return (await group.generate([1, 2], SAMPLING, session=session)).token_ids


def served(engines: list[ScriptedEngine]) -> list[list[str]]:
    return [[call.session for call in e.calls] for e in engines]


async def test_a_session_stays_with_its_engine_and_sessions_spread() -> None:
    engines = [engine() for _ in range(3)]
    group = EngineGroup(engines)
    for _ in range(4):
        for n in range(9):
            await ask(group, f"s{n}")
    by_engine = [set(sessions) for sessions in served(engines)]
    assert [len(s) for s in by_engine] == [3, 3, 3] and len(set.union(*by_engine)) == 9


async def test_a_new_session_goes_to_the_engine_with_the_least_to_do() -> None:
    slow, fast = engine(latency_s=60), engine()
    group = EngineGroup([slow, fast])
    waiting = asyncio.create_task(ask(group, "long"))
    await asyncio.sleep(0)
    for n in range(3):
        await ask(group, f"s{n}")
    assert served([slow, fast])[1] == ["s0", "s1", "s2"]
    waiting.cancel()


async def test_past_its_line_an_engine_refuses() -> None:
    group = EngineGroup([engine(latency_s=0.05)], max_in_flight=2, max_queued=1)
    asked = await asyncio.gather(*(ask(group, f"s{n}") for n in range(5)), return_exceptions=True)
    refused = [a for a in asked if isinstance(a, EngineFullError)]
    assert len(refused) == 2 and "1 calls wait" in str(refused[0])
    assert group.members[0].load == 0 and group.members[0].is_up
    await ask(group, "later")


async def test_a_cancelled_call_gives_its_place_back() -> None:
    group = EngineGroup([engine(latency_s=60)], max_in_flight=1, max_queued=1)
    asked = [asyncio.create_task(ask(group, "a")) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert (group.members[0].in_flight, group.members[0].queued) == (1, 1)
    for task in reversed(asked):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert group.members[0].load == 0
    group.members[0].engine.latency_s = 0.0  # type: ignore[attr-defined]
    await ask(group, "a")


async def test_sessions_move_away_from_an_engine_that_fails_and_back_when_it_is_back() -> None:
    broken = [True]

    def reply(prompt: list[int], session: str) -> Any:
        return EngineUnavailableError("lost") if broken else "ok"

    class Lost(ScriptedEngine):
        async def probe(self) -> Any:
            if broken:
                raise EngineUnavailableError("lost")
            return await super().probe()

    sick, well = Lost(Letters(), reply), engine()
    group = EngineGroup([sick, well], probe_every_s=0.01)
    with pytest.raises(EngineUnavailableError, match="lost"):
        await ask(group, "mine")
    await ask(group, "mine")
    for n in range(4):
        await ask(group, f"s{n}")
    assert served([sick, well]) == [["mine"], ["mine", "s0", "s1", "s2", "s3"]]
    broken.clear()
    while not group.members[0].is_up:
        await asyncio.sleep(0.005)
    await ask(group, "new")
    assert sick.calls[-1].session == "new"
    await group.aclose()


async def test_all_down_is_unavailable() -> None:
    class Dead(ScriptedEngine):
        async def probe(self) -> Any:
            raise EngineUnavailableError("dead")

    group = EngineGroup([Dead(Letters(), lambda p, s: EngineUnavailableError("dead")) for _ in range(2)])
    for message in ("dead", "dead", "all 2 engines are down"):
        with pytest.raises(EngineUnavailableError, match=message):
            await ask(group, "s")
    await group.aclose()


async def test_an_engine_that_comes_back_as_another_stays_out() -> None:
    class Changed(ScriptedEngine):
        calls_to_probe = 0

        async def probe(self) -> Any:
            self.calls_to_probe += 1
            self._capture_level = "tokens" if self.calls_to_probe == 1 else "text"
            return await super().probe()

    changed = Changed(Letters(), lambda p, s: EngineUnavailableError("restarting"))
    group = EngineGroup([changed, engine()], probe_every_s=0.01)
    await group.probe()
    with pytest.raises(EngineUnavailableError):
        await ask(group, "s")
    while changed.calls_to_probe < 3:
        await asyncio.sleep(0.005)
    assert not group.members[0].is_up
    await group.aclose()


async def test_what_a_group_gives_is_what_each_gives() -> None:
    found = await EngineGroup([engine(context_tokens=900), engine(context_tokens=700)]).probe()
    assert found.context_tokens == 700 and found.capture_level == "tokens"
    with pytest.raises(EngineError, match="engine 1: .*'text'"):
        await EngineGroup([engine(), engine(capture_level="text")]).probe()


@pytest.mark.parametrize("options", [{"max_in_flight": 0}, {"max_queued": -1}])
def test_impossible_limits_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match="at least"):
        EngineGroup([engine()], **options)
    with pytest.raises(ValueError, match="at least one engine"):
        EngineGroup([])


async def test_weights_are_updated_while_calls_wait() -> None:
    engines = [engine(latency_s=0.02, version=1) for _ in range(2)]
    group = EngineGroup(engines)
    running = [asyncio.create_task(ask(group, f"s{n}")) for n in range(4)]
    await asyncio.sleep(0.005)
    group.pause()
    waiting = asyncio.create_task(ask(group, "s0"))
    await group.drain()
    assert all(task.done() for task in running) and not waiting.done()
    assert group.versions == (1, 1)
    for e in engines:
        e.version = 2
    group.resume()
    await waiting
    assert 2 in group.versions
    assert {c.generation.versions for e in engines for c in e.calls[2:] if c.generation} == {((0, 2),)}


async def test_one_engine_is_updated_while_the_other_serves() -> None:
    first, second = engine(), engine()
    group = EngineGroup([first, second])
    await ask(group, "a")
    await ask(group, "b")
    group.members[0].pause()
    await group.members[0].drain()
    waiting = asyncio.create_task(ask(group, "a"))
    await ask(group, "b")
    await ask(group, "c")
    assert not waiting.done() and [c.session for c in second.calls] == ["b", "b", "c"]
    group.members[0].resume()
    await waiting


SERVER = """
import asyncio, sys
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.engines.service import completions_app
from palestra.harness_proxy.listener import Listener

class Letters:
    stop_token_ids = (0,)
    def encode(self, text):
        return list(map(ord, text))

class Engine(ScriptedEngine):
    async def generate(self, prompt_ids, sampling, *, session=""):
        if session:
            await asyncio.sleep(0.1)
        reply = await super().generate(prompt_ids, sampling, session=session)
        if sampling.top_k == 1:
            reply.logprobs[:] = [0.0] * len(reply.logprobs)
        return reply

async def main():
    engine = Engine(Letters(), lambda prompt, session: "abc")
    listener = await Listener.open(completions_app(engine), "127.0.0.1", int(sys.argv[1]))
    print(listener.url, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def servers() -> Iterator[list[tuple[subprocess.Popen[str], str]]]:
    """Two engines in processes of their own, and where they are."""
    command = [sys.executable, "-c", SERVER, "0"]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        yield [(p, p.stdout.readline().strip()) for p in started if p.stdout is not None]
    finally:
        for process in started:
            process.kill()
            process.communicate()


async def test_an_engine_is_killed_in_mid_reply(servers: Any, tmp_path: Path) -> None:
    group = EngineGroup([CompletionsEngine(f"{url}/v1", "scripted") for _, url in servers], probe_every_s=60)
    await group.probe()
    running = [asyncio.create_task(ask(group, f"s{n}")) for n in range(8)]
    await asyncio.sleep(0.05)
    servers[0][0].kill()
    ended = await asyncio.gather(*running, return_exceptions=True)
    lost = [n for n, e in enumerate(ended) if isinstance(e, EngineUnavailableError)]
    assert len(lost) == 4 and all(isinstance(e, list) for n, e in enumerate(ended) if n not in lost)
    again = await asyncio.gather(*(ask(group, f"s{n}") for n in range(12)))
    assert again == [[97, 98, 99, 0]] * 12
    assert [member.is_up for member in group.members] == [False, True]
    await group.aclose()
