"""vLLM for real, on the CPU: exact log-probabilities, new weights while it serves, and what happens when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from torch import Tensor

from palestra.harness_proxy.engines.base import EngineError, EngineUnavailableError, Generation
from palestra.harness_proxy.engines.publishing import BroadcastWeights, FileWeights
from palestra.harness_proxy.engines.vllm import VllmEngine
from palestra.harness_proxy.engines.vllm_server import VllmOptions, VllmServer
from palestra.trajectories.model import Sampling

torch.set_num_threads(1)
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("vllm")]
PROMPT = [1, 2, 3, 50, 60]
ENDLESS = Sampling(max_tokens=1 << 20)
"""Cut to the context, which is long, and the served model does not know how to end: still sampled when a test looks."""


@contextlib.asynccontextmanager
async def serving(shared: VllmServer, **options: Any) -> AsyncIterator[VllmEngine]:
    """An engine before the shared server, which it leaves running."""
    engine = VllmEngine(shared.base_url, "policy", **{"publisher": FileWeights(untie=True)} | options)
    try:
        yield engine
    finally:
        engine._server = None
        await engine.aclose()


@pytest.fixture
def weights(vllm_model_dir: Path) -> Iterator[dict[str, Tensor]]:
    from safetensors.torch import load_file

    yield load_file(vllm_model_dir / "model.safetensors")


def moved(weights: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: w + 0.05 * torch.randn(w.shape, generator=generator) for n, w in weights.items()}


def recomputed(
    model_dir: Path, weights: dict[str, Tensor], reply: Generation, temperature: float
) -> list[float]:
    """Log-probabilities of the reply by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=torch.float32)
    model.load_state_dict(weights, strict=False)
    ids = torch.tensor([PROMPT + reply.token_ids])
    with torch.no_grad():
        log_p = torch.log_softmax(model(input_ids=ids).logits[0].float() / temperature, -1)
    at = torch.arange(len(PROMPT) - 1, ids.shape[1] - 1)
    return [float(x) for x in log_p[at, ids[0, len(PROMPT) :]]]


async def test_log_probabilities_are_of_the_distribution_sampled_from(
    vllm_server: VllmServer, vllm_model_dir: Path, weights: dict[str, Tensor]
) -> None:
    async with serving(vllm_server) as engine:
        found = await engine.probe()
        assert (found.capture_level, found.logprob_semantics) == ("tokens", "processed")
        await engine.update_weights(weights, 0)
        reply = await engine.generate(PROMPT, Sampling(temperature=0.7, max_tokens=12, seed=1))
        expected = recomputed(vllm_model_dir, weights, reply, 0.7)
        np.testing.assert_allclose(reply.logprobs, expected, atol=1e-4)


async def test_new_weights_are_served_and_named(
    vllm_server: VllmServer, vllm_model_dir: Path, weights: dict[str, Tensor]
) -> None:
    async with serving(vllm_server) as engine:
        await engine.probe()
        for version in (3, 4):
            fresh = moved(weights, version)
            await engine.update_weights(fresh, version)
            reply = await engine.generate(PROMPT, Sampling(max_tokens=8, seed=1))
            assert reply.versions == ((0, version),)
            np.testing.assert_allclose(
                reply.logprobs, recomputed(vllm_model_dir, fresh, reply, 1.0), atol=1e-4
            )


async def test_weights_from_process_to_process(
    vllm_server: VllmServer, vllm_model_dir: Path, weights: dict[str, Tensor]
) -> None:
    async with serving(vllm_server, publisher=BroadcastWeights(untie=True)) as engine:
        await engine.probe()
        for version in (5, 6):
            fresh = moved(weights, version)
            await engine.update_weights(fresh, version)
            reply = await engine.generate(PROMPT, Sampling(max_tokens=8, seed=1))
            assert reply.versions == ((0, version),)
            np.testing.assert_allclose(
                reply.logprobs, recomputed(vllm_model_dir, fresh, reply, 1.0), atol=1e-4
            )


async def test_a_reply_that_outlives_an_update_carries_both_versions(
    vllm_server: VllmServer, weights: dict[str, Tensor]
) -> None:
    async with serving(vllm_server, in_flight="keep") as engine:
        await engine.probe()
        await engine.update_weights(weights, 10)
        sampling = Sampling(max_tokens=500, seed=1)
        replies = [asyncio.create_task(engine.generate([1, k], sampling)) for k in range(4)]
        await until(vllm_server, "num_requests_running", 4)
        await engine.update_weights(moved(weights, 1), 11)
        for reply in await asyncio.gather(*replies):
            assert [version for _, version in reply.versions] == [10, 11]
            assert 0 < reply.versions[1][0] < len(reply.token_ids)


async def test_without_versions_per_token_no_reply_may_outlive_an_update(
    vllm_server: VllmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(vllm_server, in_flight="keep") as engine:

        async def unnamed() -> bool:
            return False

        monkeypatch.setattr(engine, "_names_weights", unnamed)
        with pytest.raises(EngineError, match="must not outlive an update"):
            await engine.probe()


async def test_the_completions_endpoint_serves_where_the_other_does_not(
    vllm_server: VllmServer, vllm_model_dir: Path, weights: dict[str, Tensor]
) -> None:
    async with serving(vllm_server) as engine:  # not probed, so it knows of no other endpoint
        await engine.update_weights(weights, 2)
        reply = await engine.generate(PROMPT, Sampling(temperature=0.7, max_tokens=12, seed=1))
        assert reply.versions == ((0, 2),)
        expected = recomputed(vllm_model_dir, weights, reply, 0.7)
        np.testing.assert_allclose(reply.logprobs, expected, atol=1e-4)


async def test_weights_that_another_run_published_are_refused(
    vllm_server: VllmServer, weights: dict[str, Tensor]
) -> None:
    async with serving(vllm_server) as mine, serving(vllm_server) as theirs:
        await mine.probe()
        await theirs.probe()
        await mine.update_weights(weights, 5)
        await theirs.update_weights(weights, 77)
        with pytest.raises(EngineError, match="sampled with weights"):
            await mine.generate(PROMPT, Sampling(max_tokens=2))


async def test_a_cancelled_call_stops_sampling(vllm_server: VllmServer, weights: dict[str, Tensor]) -> None:
    async with serving(vllm_server) as engine:
        await engine.probe()
        await engine.update_weights(weights, 0)
        call = asyncio.create_task(engine.generate(PROMPT, ENDLESS))
        await until(vllm_server, "num_requests_running", 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(60):
            while await gauge(vllm_server, "num_requests_running"):
                await engine.generate(
                    PROMPT, Sampling(max_tokens=1)
                )  # the gauge is set where tokens are sampled


async def test_a_killed_server_comes_back_with_the_weights_it_had(
    vllm_server: VllmServer, vllm_model_dir: Path, weights: dict[str, Tensor]
) -> None:
    async with serving(vllm_server, server=vllm_server) as engine:
        await engine.probe()
        fresh = moved(weights, 6)
        await engine.update_weights(fresh, 6)
        call = asyncio.create_task(engine.generate(PROMPT, ENDLESS))
        await until(vllm_server, "num_requests_running", 1)
        assert vllm_server._process is not None
        os.killpg(vllm_server._process.pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailableError):
            await call
        while vllm_server.running:
            await asyncio.sleep(0.01)
        reply = await engine.generate(PROMPT, Sampling(max_tokens=4, seed=1))
        assert reply.versions == ((0, 6),)
        np.testing.assert_allclose(reply.logprobs, recomputed(vllm_model_dir, fresh, reply, 1.0), atol=1e-4)


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo "no such device"; exit 3; }\n')
    python.chmod(0o755)
    with pytest.raises(EngineError, match=r"ended while it was starting(.|\n)*no such device"):
        await VllmServer.start(VllmOptions("model", python=str(python), log=tmp_path / "vllm.log"))


async def test_an_interpreter_without_vllm_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="has no vLLM: pip install vllm"):
        await VllmServer.start(VllmOptions(tmp_path, log=tmp_path / "vllm.log"))


async def until(server: VllmServer, name: str, value: float) -> None:
    """Wait until vLLM reports `value`."""
    async with asyncio.timeout(60):
        while await gauge(server, name) != value:
            pass


async def gauge(server: VllmServer, name: str) -> float:
    """What vLLM reports now."""
    url = server.base_url.removesuffix("/v1") + "/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        lines = (await response.text()).splitlines()
    [found] = [float(x.split()[-1]) for x in lines if x.startswith(f"vllm:{name}{{")]
    return found
