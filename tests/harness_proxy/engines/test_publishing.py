"""Weights on their way: broadcast between threads that stand for processes, and files of what is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from torch import Tensor

from palestra.harness_proxy.engines.base import EngineError, EngineUnavailableError
from palestra.harness_proxy.engines.publishing import ADAPTER, AdapterWeights, BroadcastWeights, FileWeights
from palestra.harness_proxy.engines.vllm import VllmEngine
from palestra.harness_proxy.engines.vllm_side.palestra_receiver import WeightReceiver
from palestra.trajectories.model import Sampling

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(5, dtype=torch.bfloat16)}


class Worker(WeightReceiver):
    """One of vLLM's workers, as far as the receiver sees it."""

    def __init__(self, rank: int) -> None:
        self.rank, self.device = rank, torch.device("cpu")
        self.holds: dict[str, Tensor] = {}

    def reload_weights(self, weights_iterator: Iterable[tuple[str, Tensor]]) -> None:
        for name, value in weights_iterator:
            if name == "unknown":
                raise KeyError(name)
            self.holds[name] = value


class Workers:
    """/collective_rpc, with a thread per worker."""

    def __init__(self, count: int) -> None:
        self.workers = [Worker(rank) for rank in range(count)]

    async def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        assert (method, path) == ("POST", "/collective_rpc")
        body = json.loads(json.dumps(body))
        calls = [getattr(worker, body["method"]) for worker in self.workers]
        done = await asyncio.gather(
            *(asyncio.to_thread(call, **body.get("kwargs", {})) for call in calls), return_exceptions=True
        )
        if failed := [error for error in done if isinstance(error, BaseException)]:
            raise EngineError(f"500: {failed[0]!r}")
        return {"results": done}


@pytest.mark.parametrize("count", [1, 2])
async def test_every_worker_gets_every_tensor(count: int) -> None:
    there, publisher = Workers(count), BroadcastWeights(timeout_s=30)
    for scale in (1.0, 2.0):
        publisher.prepare({name: value * scale for name, value in WEIGHTS.items()})
        await publisher.send(there.request)
        for worker in there.workers:
            assert list(worker.holds) == list(WEIGHTS)
            assert all(torch.equal(worker.holds[n], v * scale) for n, v in WEIGHTS.items())
            assert all(worker.holds[n].dtype == v.dtype for n, v in WEIGHTS.items())
    publisher.close()


async def test_what_workers_cannot_load_is_an_error_on_both_sides_and_the_next_weights_are_taken() -> None:
    there, publisher = Workers(2), BroadcastWeights(timeout_s=30)
    publisher.prepare({"unknown": torch.zeros(3), **WEIGHTS})
    with pytest.raises(EngineError, match="unknown"):
        await publisher.send(there.request)
    publisher.prepare(WEIGHTS)
    await publisher.send(there.request)
    assert all(torch.equal(there.workers[1].holds[n], v) for n, v in WEIGHTS.items())
    publisher.close()


class Server:
    """A vLLM that notes what it is asked for; its process dies when told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.running, self.refuses, self.starts = True, False, 0
        self.app = web.Application()
        self.app.router.add_get("/v1/models", self.models)
        self.app.router.add_post("/v1/completions", self.complete)
        self.app.router.add_post("/{path:.*}", self.note)

    async def restart(self) -> None:
        self.running, self.starts = True, self.starts + 1

    async def aclose(self) -> None:
        self.running = False

    async def note(self, request: web.Request) -> web.Response:
        body, said = json.loads(await request.read() or b"null"), "{}"
        if request.path == "/collective_rpc":
            directory = Path(body["kwargs"]["weights_path"])
            body = (directory / "model.safetensors").read_bytes()
        elif request.path == "/v1/load_lora_adapter":
            said = "Success: LoRA adapter added successfully."
            body |= {"files": sorted(p.name for p in Path(body["lora_path"]).iterdir())}
        self.calls.append((request.path, body))
        status = 500 if self.refuses and request.path == "/collective_rpc" else 200
        return web.Response(text=said, status=status)

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": 64}]})

    async def complete(self, request: web.Request) -> web.Response:
        self.calls.append((request.path, await request.json()))
        choice = {"token_ids": [4], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})

    def loaded(self) -> list[Any]:
        return [body for path, body in self.calls if path == "/collective_rpc"]


@pytest.fixture
async def server() -> AsyncIterator[SimpleNamespace]:
    fake = Server()
    async with TestServer(fake.app) as running:
        yield SimpleNamespace(fake=fake, url=str(running.make_url("/v1")))


def engine_of(server: SimpleNamespace, publisher: Any) -> VllmEngine:
    return VllmEngine(server.url, "policy", publisher=publisher, server=server.fake)


async def test_a_server_that_died_gets_what_it_served_and_not_what_it_refused(
    server: SimpleNamespace,
) -> None:
    engine = engine_of(server, FileWeights())
    await engine.update_weights({"a": torch.zeros(2)}, 1)
    server.fake.refuses = True
    with pytest.raises(EngineError):
        await engine.update_weights({"a": torch.ones(2)}, 2)
    server.fake.refuses, server.fake.running = False, False
    reply = await engine.generate([1, 2], Sampling(max_tokens=2))
    assert reply.versions == ((0, 1),) and server.fake.starts == 1
    served, refused, again = server.fake.loaded()
    assert again == served != refused
    await engine.aclose()


async def test_before_anything_is_published_a_server_starts_again_with_its_model(
    server: SimpleNamespace,
) -> None:
    engine = engine_of(server, FileWeights())
    server.fake.running = False
    await engine.generate([1, 2], Sampling(max_tokens=2))
    assert server.fake.starts == 1 and server.fake.loaded() == []
    await engine.aclose()


async def test_broadcast_weights_are_not_kept_for_a_server_that_died(server: SimpleNamespace) -> None:
    there, publisher = Workers(1), BroadcastWeights(timeout_s=30)
    engine = engine_of(server, publisher)
    publisher.prepare(WEIGHTS)
    await publisher.send(there.request)
    engine._published = True
    server.fake.running = False
    for _ in range(2):
        with pytest.raises(EngineUnavailableError, match="no weights until the next are published"):
            await engine.generate([1, 2], Sampling(max_tokens=2))
    await engine.aclose()


async def test_adapters_are_files_that_replies_ask_for_by_name(server: SimpleNamespace) -> None:
    engine = engine_of(server, AdapterWeights({"r": 4}))
    await engine.generate([1, 2], Sampling(max_tokens=2))
    await engine.update_weights({"base_model.model.x.lora_A.weight": torch.zeros(2)}, 1)
    await engine.generate([1, 2], Sampling(max_tokens=2))
    asked = [body["model"] for path, body in server.fake.calls if path == "/v1/completions"]
    assert asked == ["policy", ADAPTER]
    [loaded] = [body for path, body in server.fake.calls if path == "/v1/load_lora_adapter"]
    assert loaded["lora_name"] == ADAPTER and loaded["load_inplace"]
    assert loaded["files"] == ["adapter_config.json", "adapter_model.safetensors"]
    assert ("/reset_prefix_cache", None) in server.fake.calls
    await engine.aclose()
    assert not Path(loaded["lora_path"]).exists()
