"""What the client asks again for, how long it waits, and what it takes for final."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
import pytest
from aiohttp import web

from palestra.rollouts.errors import RolloutError
from palestra.rollouts.harnesses import Endpoint, chat_client
from palestra.rollouts.harnesses.chat_client import ChatClient


class Upstream:
    """Plays answers in order, the last one for ever: (status, headers), bytes, or "cut"."""

    def __init__(self) -> None:
        self.answers: Sequence[Any] = [(200, {})]
        self.seen: list[tuple[dict[str, str], Any]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.seen.append((dict(request.headers), orjson.loads(await request.read())))
        answer = self.answers[min(len(self.seen), len(self.answers)) - 1]
        if answer == "cut":
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        if isinstance(answer, bytes):
            return web.Response(body=answer)
        status, headers = answer
        body = {"choices": [{"message": {"role": "assistant", "content": "hi"}}]}
        return web.json_response(body if status == 200 else {"error": "why"}, status=status, headers=headers)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    played = Upstream()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", played.handle)
    server = web.AppRunner(app)
    await server.setup()
    site = web.TCPSite(server, "127.0.0.1", 0)
    await site.start()
    host, port = server.addresses[0][:2]
    played.url = f"http://{host}:{port}/v1"
    yield played
    await server.cleanup()


@pytest.fixture
def waits() -> list[float]:
    """Seconds that the client would have waited."""
    return []


@pytest.fixture
async def client(waits: list[float]) -> AsyncIterator[ChatClient]:
    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    made = ChatClient(sleep)
    yield made
    await made.aclose()
    await made.aclose()


async def ask(client: ChatClient, upstream: Upstream) -> chat_client.ChatReply:
    return await client.chat(Endpoint(upstream.url, "secret"), [{"role": "user", "content": "é"}], [])


async def test_a_reply_and_what_the_proxy_says_of_it(upstream: Upstream, client: ChatClient) -> None:
    upstream.answers = [(200, {"x-palestra-call": "0"})]
    reply = await ask(client, upstream)
    assert (reply.message["content"], reply.call, reply.stopped) == ("hi", 0, None)
    [(headers, body)] = upstream.seen
    assert headers["Authorization"] == "Bearer secret"
    assert "x-stainless-retry-count" not in headers
    assert body == {"model": "palestra", "messages": [{"role": "user", "content": "é"}], "tools": []}


async def test_a_budget_that_ran_out(upstream: Upstream, client: ChatClient) -> None:
    upstream.answers = [(200, {"x-palestra-stop": "max_path_tokens"})]
    reply = await ask(client, upstream)
    assert (reply.call, reply.stopped) == (None, "max_path_tokens")


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
async def test_statuses_that_pass_are_waited_for(
    upstream: Upstream, client: ChatClient, waits: list[float], status: int
) -> None:
    upstream.answers = [(status, {}), (status, {}), (200, {})]
    assert (await ask(client, upstream)).message["content"] == "hi"
    assert waits == [0.0, 0.1, 0.2]
    assert [h.get("x-stainless-retry-count") for h, _ in upstream.seen] == [None, "1", "2"]
    assert upstream.seen[0][1] == upstream.seen[2][1]


@pytest.mark.parametrize(
    ("told", "waited"),
    [("2", 2.0), ("0.01", 0.1), ("9999", 60.0), ("-5", 0.1), ("soon", 0.1), ("nan", 0.1)]
    + [("Wed, 21 Oct 2026 07:28:00 GMT", 0.1)],
)
async def test_retry_after(
    upstream: Upstream, client: ChatClient, waits: list[float], told: str, waited: float
) -> None:
    upstream.answers = [(429, {"retry-after": told}), (200, {})]
    await ask(client, upstream)
    assert waits == [0.0, waited]


async def test_milliseconds_are_more_exact_than_seconds(
    upstream: Upstream, client: ChatClient, waits: list[float]
) -> None:
    upstream.answers = [(429, {"retry-after": "1", "retry-after-ms": "300"}), (200, {})]
    await ask(client, upstream)
    assert waits == [0.0, 0.3]


async def test_a_broken_connection_is_opened_again(upstream: Upstream, client: ChatClient) -> None:
    upstream.answers = ["cut", "cut", (200, {})]
    assert (await ask(client, upstream)).message["content"] == "hi"
    assert len(upstream.seen) == 3


async def test_it_gives_up_and_does_not_wait_for_nothing(
    upstream: Upstream, client: ChatClient, waits: list[float]
) -> None:
    upstream.answers = [(503, {})]
    with pytest.raises(RolloutError, match="gave up after 9 tries: HTTP 503") as caught:
        await ask(client, upstream)
    assert (caught.value.failure.boundary, caught.value.failure.retryable) == ("provider", True)
    assert waits == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500])
async def test_final_statuses_are_not_asked_again(
    upstream: Upstream, client: ChatClient, status: int
) -> None:
    upstream.answers = [(status, {})]
    with pytest.raises(RolloutError, match=f"HTTP {status}") as caught:
        await ask(client, upstream)
    assert (caught.value.failure.boundary, caught.value.failure.retryable) == ("provider", False)
    assert len(upstream.seen) == 1


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"choices": []}', b"[]"])
async def test_an_answer_that_is_none(upstream: Upstream, client: ChatClient, body: bytes) -> None:
    upstream.answers = [body]
    with pytest.raises(RolloutError) as caught:
        await ask(client, upstream)
    assert caught.value.failure.boundary == "provider"
