"""The embedded engine in its own process: the same replies, and an end that nobody waits for in vain."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from palestra.harness_proxy.engines.base import EngineUnavailableError, PromptTooLongError
from palestra.harness_proxy.engines.embedded.engine import TorchEngine
from palestra.harness_proxy.engines.embedded.process import ProcessEngine
from palestra.harness_proxy.engines.embedded.qwen3 import UnsupportedModelError
from palestra.harness_proxy.engines.embedded.testing import TINY, random_weights
from palestra.trajectories.model import Sampling

MakeEngine = Callable[..., TorchEngine]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture
async def far() -> AsyncIterator[ProcessEngine]:
    engine = await ProcessEngine.start(TINY, random_weights(), version=3, deterministic=True)
    yield engine
    await engine.aclose()


async def test_the_same_bits_and_versions_as_in_this_process(
    far: ProcessEngine, make_engine: MakeEngine
) -> None:
    near = make_engine(version=3, deterministic=True)
    crowd = [([k, 5, 6], Sampling(max_tokens=9, seed=k, temperature=0.8)) for k in range(8)]
    replies = await asyncio.gather(*(far.generate(p, s, session="x") for p, s in crowd))
    assert replies == [await near.generate(p, s) for p, s in crowd]
    await far.update_weights(random_weights(seed=1), 8)
    await near.update_weights(random_weights(seed=1), 8)
    assert far.policy_version == 8
    assert await far.generate(*crowd[0]) == await near.generate(*crowd[0])


async def test_pause_resume_and_cancel_reach_the_other_side(far: ProcessEngine) -> None:
    await far.pause()
    tasks = [asyncio.create_task(far.generate([k], Sampling(max_tokens=200))) for k in range(3)]
    done, _ = await asyncio.wait(tasks, timeout=0.05)
    assert not done
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await far.resume()
    await far.drain()
    assert len((await far.generate([1], Sampling(max_tokens=2))).token_ids) == 2


async def test_when_the_process_is_killed_everybody_hears_of_it(far: ProcessEngine) -> None:
    await far.pause()
    tasks = [asyncio.create_task(far.generate([k], Sampling())) for k in range(3)]
    await asyncio.sleep(0)
    far._process.kill()
    for reply in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(reply, EngineUnavailableError)
        assert "ended" in str(reply)
    with pytest.raises(EngineUnavailableError, match="ended"):
        await far.generate([1], Sampling())
    await far.aclose()


async def test_weights_that_do_not_fit_end_the_process_and_say_why() -> None:
    with pytest.raises(ValueError, match="missing"):
        await ProcessEngine.start(TINY, {"lm_head.weight": random_weights()["model.norm.weight"]})


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_more_than_a_socket_takes_at_once_arrives_whole(loop_factory: LoopFactory) -> None:
    """uvloop makes the sockets that it watches non-blocking: a full one must not end the engine."""

    async def crowd() -> None:
        engine = await ProcessEngine.start(TINY, random_weights())
        await engine.pause()
        prompt = [7] * 100_000  # refused, and the answer needs all of it
        tasks = [asyncio.create_task(engine.generate(prompt, Sampling())) for _ in range(20)]
        replies = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(reply) for reply in replies] == [PromptTooLongError] * 20
        await engine.resume()
        assert len((await engine.generate([1], Sampling(max_tokens=2))).token_ids) == 2
        await engine.aclose()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(crowd())


@pytest.mark.parametrize("error", [PromptTooLongError(7, 5), UnsupportedModelError("model_type", "a", "b")])
def test_errors_survive_the_way(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
