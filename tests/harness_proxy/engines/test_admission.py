"""Requests wait while the KV cache is nearly full, and an engine that shares an accelerator sleeps and wakes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer

from palestra.harness_proxy.engines.admission import Admission, kv_usage
from palestra.harness_proxy.engines.base import EngineError
from palestra.harness_proxy.engines.vllm import VllmEngine
from palestra.trajectories.model import Sampling


def test_the_fullest_engine_counts() -> None:
    lines = [
        "# HELP vllm:kv_cache_usage_perc",
        *(f'vllm:kv_cache_usage_perc{{engine="{i}"}} 0.{i}' for i in (3, 7)),
    ]
    assert kv_usage("\n".join(lines)) == 0.7
    with pytest.raises(EngineError, match="max_kv_usage = 1 asks for none"):
        kv_usage("vllm:num_requests_running 3")


class Crowd:
    """Requests that stay until they are let go."""

    def __init__(self, usage: float) -> None:
        self.usage, self.asked = usage, 0
        self.admission = Admission(self._asked, 0.9, every_s=0.001, at_once=4)
        self.inside: list[int] = []

    async def _asked(self) -> float:
        self.asked += 1
        return self.usage

    async def enter(self, number: int, leave: asyncio.Event) -> None:
        async with self.admission.admitted():
            self.inside.append(number)
            await leave.wait()


async def test_a_full_cache_lets_one_in_and_the_rest_in_order_when_there_is_room() -> None:
    crowd, leave = Crowd(0.95), asyncio.Event()
    tasks = [asyncio.create_task(crowd.enter(i, leave)) for i in range(5)]
    await asyncio.sleep(0.02)
    assert crowd.inside == [0], "it would wait forever otherwise"
    crowd.usage = 0.5
    await asyncio.sleep(0.02)
    assert crowd.inside == [0, 1, 2, 3, 4]
    leave.set()
    await asyncio.gather(*tasks)


async def test_the_server_is_not_asked_for_every_request() -> None:
    crowd, leave = Crowd(0.1), asyncio.Event()
    crowd.admission = Admission(crowd._asked, 0.9, every_s=60, at_once=4)
    tasks = [asyncio.create_task(crowd.enter(i, leave)) for i in range(40)]
    await asyncio.sleep(0.02)
    assert len(crowd.inside) == 40 and 9 <= crowd.asked <= 11
    leave.set()
    await asyncio.gather(*tasks)


async def test_a_request_that_is_given_up_leaves_no_trace() -> None:
    crowd, leave = Crowd(0.95), asyncio.Event()
    first, second = [asyncio.create_task(crowd.enter(i, leave)) for i in range(2)]
    await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    leave.set()
    await first
    await asyncio.wait_for(crowd.enter(2, leave), 1)


class Server:
    """What a vLLM with sleep mode does to its calls, as far as an engine sees it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.app = web.Application()
        for path in ("/sleep", "/wake_up", "/pause", "/resume", "/collective_rpc", "/reset_prefix_cache"):
            self.app.router.add_post(path, self.note)
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_post("/v1/completions", self.complete)

    async def note(self, request: web.Request) -> web.Response:
        self.calls.append(request.path_qs)
        return web.json_response({})

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": 64}]})

    async def complete(self, request: web.Request) -> web.Response:
        choice = {"token_ids": [4], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    fake = Server()
    async with TestServer(fake.app) as running:
        yield fake, str(running.make_url("/v1"))


async def test_new_weights_wake_an_engine_that_slept_and_only_then(server: tuple[Server, str]) -> None:
    fake, url = server
    engine = VllmEngine(url, "policy")
    weights = {"embed_tokens.weight": torch.zeros(2, 2)}
    await engine.update_weights(weights, 1)
    assert "/wake_up" not in fake.calls
    await engine.sleep()
    await engine.update_weights(weights, 2)
    published = ["/pause?mode=wait", "/collective_rpc", "/resume"]
    after = fake.calls[fake.calls.index("/sleep?level=1") :]
    assert after[:2] == ["/sleep?level=1", "/wake_up"] and set(published) < set(after[2:])
    assert (await engine.generate([1, 2], Sampling(max_tokens=2))).versions == ((0, 2),)
    await engine.aclose()
