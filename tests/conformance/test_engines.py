"""What every engine promises, swept over all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import torch
import uvicorn

from palestra.harness_proxy.engines.base import Engine, Generation, PromptTooLongError
from palestra.harness_proxy.engines.embedded.engine import TorchEngine
from palestra.harness_proxy.engines.embedded.process import ProcessEngine
from palestra.harness_proxy.engines.embedded.testing import TINY, random_weights
from palestra.harness_proxy.engines.remote import CompletionsEngine
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.engines.service import completions_app
from palestra.trajectories.model import Sampling

torch.set_num_threads(1)
CONTEXT_TOKENS = 64
Make = Callable[[], AbstractAsyncContextManager[Engine]]


class Letters:
    """The least that ScriptedEngine needs of a tokenizer."""

    stop_token_ids: tuple[int, ...] = (0,)

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - 96 for letter in text]


@contextlib.asynccontextmanager
async def closing(engine: Engine) -> AsyncIterator[Engine]:
    try:
        yield engine
    finally:
        await engine.aclose()


def scripted() -> AbstractAsyncContextManager[Engine]:
    """Every reply is eleven letters and the stop token."""
    replies = ["abcdefghijk"] * 40
    return closing(ScriptedEngine(Letters(), replies, context_tokens=CONTEXT_TOKENS, latency_s=1e-3))


def embedded() -> AbstractAsyncContextManager[Engine]:
    return closing(TorchEngine(TINY, random_weights(), context_tokens=CONTEXT_TOKENS))


def deterministic() -> AbstractAsyncContextManager[Engine]:
    return closing(TorchEngine(TINY, random_weights(), context_tokens=CONTEXT_TOKENS, deterministic=True))


@contextlib.asynccontextmanager
async def in_a_process() -> AsyncIterator[Engine]:
    async with closing(
        await ProcessEngine.start(TINY, random_weights(), context_tokens=CONTEXT_TOKENS)
    ) as engine:
        yield engine


@contextlib.asynccontextmanager
async def over_http() -> AsyncIterator[Engine]:
    async with embedded() as engine:
        config = uvicorn.Config(completions_app(engine), port=0, log_level="error", lifespan="off", ws="none")
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        ticking = asyncio.create_task(server.main_loop())
        port = server.servers[0].sockets[0].getsockname()[1]
        async with closing(CompletionsEngine(f"http://127.0.0.1:{port}/v1", "embedded")) as far:
            yield far
        server.should_exit = True
        await ticking
        await server.shutdown()


@pytest.fixture(
    params=[scripted, embedded, deterministic, in_a_process, over_http], ids=lambda make: str(make.__name__)
)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    make: Make = request.param
    async with make() as engine:
        yield engine


def assert_sound(reply: Generation, sampling: Sampling) -> None:
    assert 1 <= len(reply.token_ids) == len(reply.logprobs) <= sampling.max_tokens
    assert all(type(token) is int for token in reply.token_ids)
    assert all(type(logprob) is float and logprob <= 0 for logprob in reply.logprobs)
    assert reply.versions[0][0] == 0
    stopped = reply.token_ids[-1] in sampling.stop_token_ids
    assert reply.finish_reason == ("stop" if stopped else "length")
    assert not set(reply.token_ids[:-1]) & set(sampling.stop_token_ids)


async def test_probe_names_model_level_and_context(engine: Engine) -> None:
    found = await engine.probe()
    assert found.model
    assert (found.capture_level, found.logprob_semantics) == ("tokens", "processed")
    assert found.context_tokens == CONTEXT_TOKENS


async def test_a_reply_is_cut_at_max_tokens(engine: Engine) -> None:
    sampling = Sampling(max_tokens=5, seed=1)
    reply = await engine.generate([1, 2, 3], sampling)
    assert_sound(reply, sampling)
    assert (len(reply.token_ids), reply.finish_reason) == (5, "length")


async def test_the_stop_token_is_part_of_the_reply(engine: Engine) -> None:
    free = await engine.generate([1, 2, 3], Sampling(max_tokens=12, seed=1))
    sampling = Sampling(max_tokens=12, seed=1, stop_token_ids=(free.token_ids[-1],))
    reply = await engine.generate([1, 2, 3], sampling)
    assert_sound(reply, sampling)
    assert reply.finish_reason == "stop"


async def test_a_prompt_that_fills_the_context_is_refused(engine: Engine) -> None:
    for n in (CONTEXT_TOKENS, CONTEXT_TOKENS + 1):
        with pytest.raises(PromptTooLongError) as caught:
            await engine.generate([1] * n, Sampling())
        assert (caught.value.prompt_tokens, caught.value.limit) == (n, CONTEXT_TOKENS)
    sampling = Sampling(max_tokens=5, seed=0)
    assert_sound(await engine.generate([1] * (CONTEXT_TOKENS - 1), sampling), sampling)


async def test_concurrent_calls_are_each_answered(engine: Engine) -> None:
    sampling = [Sampling(max_tokens=1 + k % 8, seed=k) for k in range(16)]
    replies = await asyncio.gather(
        *(engine.generate([1, k], s, session=f"{k}") for k, s in enumerate(sampling))
    )
    for reply, s in zip(replies, sampling, strict=True):
        assert_sound(reply, s)


async def test_a_cancelled_call_leaves_the_engine_working(engine: Engine) -> None:
    task = asyncio.create_task(engine.generate([1], Sampling(max_tokens=50)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    sampling = Sampling(max_tokens=3, seed=0)
    assert_sound(await engine.generate([1], sampling), sampling)


async def test_closing_twice_is_fine(engine: Engine) -> None:
    await engine.generate([1], Sampling(max_tokens=1))
    await engine.aclose()
    await engine.aclose()
