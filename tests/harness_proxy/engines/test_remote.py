"""The adapter to a completions endpoint: exact over a real server, and it refuses what does not add up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson
import pytest
import uvicorn

from palestra.harness_proxy.engines.base import (
    EngineError,
    EngineUnavailableError,
    InvalidRequestError,
    PromptTooLongError,
)
from palestra.harness_proxy.engines.embedded.engine import TorchEngine
from palestra.harness_proxy.engines.embedded.testing import random_weights
from palestra.harness_proxy.engines.remote import CompletionsEngine
from palestra.harness_proxy.engines.service import completions_app
from palestra.trajectories.model import Sampling

MakeEngine = Callable[..., TorchEngine]


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """A real HTTP server on a free port; yields its base URL."""
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    [listening] = server.servers
    ticking = asyncio.create_task(server.main_loop())
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        await ticking
        await server.shutdown()


@contextlib.asynccontextmanager
async def remote(app: Any, model: str = "embedded", **options: Any) -> AsyncIterator[CompletionsEngine]:
    async with served(app) as url:
        engine = CompletionsEngine(url, model, **options)
        try:
            yield engine
        finally:
            await engine.aclose()


def answers(status: int, body: Any, seen: list[Any] | None = None) -> Any:
    """An endpoint that lists a model and answers every completion alike."""

    async def app(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        event = await receive()
        is_list = scope["path"] == "/v1/models"
        if seen is not None and not is_list:
            seen.append((dict(scope["headers"]), orjson.loads(event["body"])))
        listed = {"data": [{"id": "embedded", "max_model_len": 256}]}
        content = (
            body if isinstance(body, bytes) and not is_list else orjson.dumps(listed if is_list else body)
        )
        await send({"type": "http.response.start", "status": 200 if is_list else status, "headers": []})
        await send({"type": "http.response.body", "body": content})

    return app


def reply(**changes: Any) -> dict[str, Any]:
    choice = {
        "token_ids": [4, 5],
        "prompt_token_ids": [1, 2],
        "logprobs": {"token_logprobs": [-0.5, -1]},
        "finish_reason": "length",
    }
    return {"choices": [choice | changes]}


async def test_the_same_bits_as_in_process(make_engine: MakeEngine) -> None:
    engine = make_engine(deterministic=True)
    crowd = [([k, 5, 6], Sampling(max_tokens=9, seed=k, temperature=0.8, top_p=0.9)) for k in range(12)]
    async with remote(completions_app(engine)) as far:
        over_http = await asyncio.gather(*(far.generate(p, s, session="x") for p, s in crowd))
        assert over_http == [await engine.generate(p, s) for p, s in crowd]
        assert await far.probe() == await engine.probe()


async def test_versions_and_stops_come_through(make_engine: MakeEngine) -> None:
    engine = make_engine()
    async with remote(completions_app(engine)) as far:
        free = await far.generate([1], Sampling(max_tokens=9, seed=1))
        await engine.update_weights(random_weights(), 7)
        stopped = await far.generate([1], Sampling(max_tokens=9, seed=1, stop_token_ids=(free.token_ids[3],)))
    assert (stopped.finish_reason, stopped.versions) == ("stop", ((0, 7),))
    assert stopped.token_ids[-1] == free.token_ids[3]


async def test_the_context_is_kept_as_in_process(make_engine: MakeEngine) -> None:
    async with remote(completions_app(make_engine(context_tokens=20))) as far:
        assert len((await far.generate([1] * 17, Sampling(max_tokens=50))).token_ids) == 3
        with pytest.raises(PromptTooLongError, match="20 tokens, the prompt has 20"):
            await far.generate([1] * 20, Sampling())
        with pytest.raises(InvalidRequestError, match="0 to 96"):
            await far.generate([97], Sampling())


async def test_cancelling_frees_the_row_over_there(make_engine: MakeEngine) -> None:
    engine = make_engine(context_tokens=250)
    async with remote(completions_app(engine)) as far:
        task = asyncio.create_task(far.generate([1], Sampling(max_tokens=240)))
        while not engine._batch.requests:
            await asyncio.sleep(0)
        await engine.pause()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while engine._batch.requests:
            await asyncio.sleep(0.001)
        await engine.resume()


async def test_what_is_sent_is_what_vllm_takes() -> None:
    seen: list[Any] = []
    async with remote(answers(200, reply(), seen), api_key="secret") as far:
        await far.generate([1, 2], Sampling(max_tokens=9, stop_token_ids=(3,), seed=8), session="r1")
    [(headers, body)] = seen
    assert headers[b"authorization"] == b"Bearer secret"
    assert headers[b"x-session-id"] == b"r1"
    assert (body["prompt"], body["stop_token_ids"], body["seed"]) == ([1, 2], [3], 8)
    assert (body["return_token_ids"], body["logprobs"], body["ignore_eos"]) == (True, 0, True)


async def test_an_endpoint_without_versions_is_labelled_by_hand() -> None:
    async with remote(answers(200, reply())) as far:
        far.policy_version = 12
        assert (await far.generate([1, 2], Sampling())).versions == ((0, 12),)


@pytest.mark.parametrize(
    "body",
    [
        reply(token_ids=[4]),
        reply(token_ids=[4, 5, 6]),
        reply(token_ids=[], logprobs={"token_logprobs": []}),
        reply(token_ids=None),
        reply(token_ids=["4", "5"]),
        reply(token_ids=[4.0, 5.0]),
        reply(logprobs=None),
        reply(logprobs={"token_logprobs": [None, -1.0]}),
        reply(prompt_token_ids=[1, 2, 3]),
        reply(finish_reason="tool_calls"),
        {"choices": []},
        {"choices": [reply()["choices"][0]] * 2},
        {},
        [],
        b"<html>",
    ],
)
async def test_replies_that_do_not_add_up_are_refused(body: Any) -> None:
    async with remote(answers(200, body)) as far:
        with pytest.raises(EngineError) as caught:
            await far.generate([1, 2], Sampling(max_tokens=2))
    assert type(caught.value) is EngineError


async def test_more_tokens_than_asked_for_are_refused() -> None:
    async with remote(answers(200, reply())) as far:
        with pytest.raises(EngineError, match="asked 1"):
            await far.generate([1, 2], Sampling(max_tokens=1))


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (429, "slow down", EngineUnavailableError),
        (500, "oops", EngineUnavailableError),
        (503, "starting", EngineUnavailableError),
        (400, "This model's maximum context length is 10 tokens.", PromptTooLongError),
        (400, "bad seed", InvalidRequestError),
        (422, "bad field", InvalidRequestError),
        (401, "no key", EngineError),
        (404, "no such model", EngineError),
    ],
)
async def test_statuses_become_our_errors(status: int, text: str, kind: type[Exception]) -> None:
    async with remote(answers(status, {"error": {"message": text}})) as far:
        with pytest.raises(kind) as caught:
            await far.generate([1, 2], Sampling())
    assert type(caught.value) is kind


async def test_an_aborted_reply_is_worth_a_retry() -> None:
    async with remote(answers(200, reply(finish_reason="abort"))) as far:
        with pytest.raises(EngineUnavailableError, match="aborted"):
            await far.generate([1, 2], Sampling())


async def test_nobody_listening_is_unavailable() -> None:
    async with served(answers(200, {})) as url:
        pass
    far = CompletionsEngine(url, "embedded")
    with pytest.raises(EngineUnavailableError, match="Is the engine running"):
        await far.generate([1], Sampling())
    await far.aclose()


async def test_a_url_without_a_scheme_is_told_with_the_first_request() -> None:
    far = CompletionsEngine("localhost:8000/v1", "embedded")
    with pytest.raises(EngineUnavailableError, match="http://host:port"):
        await far.generate([1], Sampling())
    await far.aclose()


async def test_a_server_that_does_not_answer_in_time_is_unavailable() -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()

    async with remote(silent, timeout_s=0.05) as far:
        with pytest.raises(EngineUnavailableError, match="Timeout"):
            await far.generate([1], Sampling())


async def test_a_model_that_is_not_served_is_named() -> None:
    async with remote(answers(200, {}), model="other") as far:
        with pytest.raises(EngineError, match="no max_model_len for 'other'"):
            await far.probe()


async def test_closed_is_closed(make_engine: MakeEngine) -> None:
    async with remote(completions_app(make_engine())) as far:
        await far.generate([1], Sampling(max_tokens=1))
        await far.aclose()
        await far.aclose()
        with pytest.raises(EngineUnavailableError, match="closed"):
            await far.generate([1], Sampling())


def says(logprob: Callable[[float, int], float | None], with_ids: bool = True) -> Any:
    """An endpoint that answers max_tokens times id 7, with log-probabilities from (temperature, prompt)."""

    async def app(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        event = await receive()
        body: dict[str, Any] = {"data": [{"id": "embedded", "max_model_len": 99}]}
        if scope["path"] == "/v1/completions":
            asked = orjson.loads(event["body"])
            values = [logprob(asked["temperature"], asked["prompt"][0])] * asked["max_tokens"]
            body = reply(token_ids=[7] * len(values) if with_ids else None)
            body["choices"][0]["logprobs"] = {"token_logprobs": values}
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": orjson.dumps(body)})

    return app


@pytest.mark.parametrize(
    ("logprob", "with_ids", "level", "semantics"),
    [
        (lambda temperature, prompt: 0.0, True, "tokens", "processed"),
        (lambda temperature, prompt: -0.1 * prompt, True, "tokens", "raw"),
        (lambda temperature, prompt: -0.1 if prompt == 2 else 0.0, True, "tokens", "raw"),
        (lambda temperature, prompt: -0.1 / temperature, True, "tokens", "none"),
        (lambda temperature, prompt: 0.0, False, "logprobs", "processed"),
        (lambda temperature, prompt: None, True, "text", "none"),
    ],
)
async def test_probe_measures(logprob: Any, with_ids: bool, level: str, semantics: str) -> None:
    async with remote(says(logprob, with_ids)) as far:
        found = await far.probe()
    assert (found.capture_level, found.logprob_semantics, found.context_tokens) == (level, semantics, 99)
