"""The completions endpoint: what it answers, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, MutableMapping
from typing import Any

import httpx
import pytest

from palestra.harness_proxy.engines.base import EngineError, EngineUnavailableError
from palestra.harness_proxy.engines.embedded.engine import TorchEngine
from palestra.harness_proxy.engines.service import completions_app
from palestra.trajectories.model import Sampling

MakeEngine = Callable[..., TorchEngine]


@pytest.fixture
async def client(engine: TorchEngine) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(completions_app(engine))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        yield client


async def complete(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/v1/completions", json={"model": "tiny", "prompt": [1, 2, 3]} | fields)


async def test_a_reply_has_the_fields_of_vllm(client: httpx.AsyncClient, engine: TorchEngine) -> None:
    response = await complete(client, max_tokens=4, seed=5, logprobs=0, return_token_ids=True, top_k=-1)
    body = response.json()
    [choice] = body["choices"]
    reply = await engine.generate([1, 2, 3], Sampling(max_tokens=4, seed=5))
    assert choice["token_ids"] == reply.token_ids
    assert choice["prompt_token_ids"] == [1, 2, 3]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(reply.logprobs, abs=1e-5)
    assert choice["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert body["versions"] == [[0, 0]]


async def test_ids_and_log_probabilities_are_given_only_when_asked_for(client: httpx.AsyncClient) -> None:
    [choice] = (await complete(client)).json()["choices"]
    assert choice["logprobs"] is None
    assert "token_ids" not in choice


async def test_models_and_health(client: httpx.AsyncClient) -> None:
    [model] = (await client.get("/v1/models")).json()["data"]
    assert (model["id"], model["max_model_len"]) == ("embedded", 256)
    assert (await client.get("/health")).status_code == 200


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "text"}, "list of token ids"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": []}, "at least one"),
        ({"prompt": [97]}, "0 to 96"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": [1] * 256}, "maximum context length is 256"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"seed": "x"}, "seed"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n above 1"),
    ],
)
async def test_bad_requests_get_400_in_the_shape_of_openai(
    client: httpx.AsyncClient, fields: dict[str, Any], message: str
) -> None:
    response = await complete(client, **fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert message in error["message"]
    assert error["code"] == ("context_length_exceeded" if "maximum context" in message else None)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff"])
async def test_a_body_that_is_no_request_gets_400(client: httpx.AsyncClient, body: bytes) -> None:
    assert (await client.post("/v1/completions", content=body)).status_code == 400


async def test_unknown_routes_get_404(client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/completions")).status_code == 404
    assert (await client.post("/v1/chat/completions", json={})).status_code == 404


async def test_an_engine_that_is_closed_is_503_with_retry_after(
    client: httpx.AsyncClient, engine: TorchEngine
) -> None:
    await engine.aclose()
    for response in (await complete(client), await client.get("/health"), await client.get("/v1/models")):
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert "closed" in response.json()["error"]["message"]


class Failing:
    """An engine that raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def probe(self) -> Any:
        raise self.error

    async def generate(self, *_: Any, **__: Any) -> Any:
        raise self.error

    async def aclose(self) -> None: ...


@pytest.mark.parametrize(("error", "status"), [(EngineUnavailableError("x"), 503), (EngineError("x"), 500)])
async def test_errors_of_the_engine_have_their_status(error: Exception, status: int) -> None:
    transport = httpx.ASGITransport(completions_app(Failing(error)))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        assert (await complete(client)).status_code == status


class Codec:
    """Letters as token ids."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - 96 for letter in text]

    def decode(self, token_ids: Any) -> str:
        return " ".join(map(str, token_ids))


async def test_text_goes_through_the_codec(engine: TorchEngine) -> None:
    transport = httpx.ASGITransport(completions_app(engine, Codec()))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
        [choice] = (await complete(client, prompt="abc", return_token_ids=True, seed=1)).json()["choices"]
    assert choice["prompt_token_ids"] == [1, 2, 3]
    assert choice["text"] == " ".join(map(str, choice["token_ids"]))


async def test_a_caller_that_hangs_up_frees_its_row(make_engine: MakeEngine) -> None:
    engine = make_engine()
    app = completions_app(engine)
    body = b'{"prompt": [1], "max_tokens": 250}'
    events = [{"type": "http.request", "body": body}]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        if events:
            return events.pop()
        while not engine._batch.requests:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}, receive, send)
    await engine.generate([2], Sampling(max_tokens=1))
    assert not engine._batch.requests
    assert not sent


async def test_a_caller_that_leaves_before_its_body_is_complete_is_forgotten(engine: TorchEngine) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    await completions_app(engine)(scope, receive, send)
    assert not sent
