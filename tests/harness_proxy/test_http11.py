"""The HTTP server on real sockets: one answer per request, in order, framed as HTTP says, cut where it broke off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from palestra.harness_proxy import listener
from palestra.harness_proxy.asgi import App, Receive, Scope, Send, read_body, respond
from palestra.harness_proxy.listener import Listener

Serve = Callable[[App], Awaitable[Listener]]
GET = b"GET /a%20b?c=d HTTP/1.1\r\nhost: x\r\n\r\n"
START = {"type": "http.response.start", "status": 200, "headers": []}
LAST = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    opened: list[Listener] = []

    async def start(app: App) -> Listener:
        opened.append(await Listener.open(app, "127.0.0.1", 0))
        return opened[-1]

    yield start
    for one in opened:
        await one.aclose()


async def dial(at: Listener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = at.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


async def ask(at: Listener, data: bytes) -> bytes:
    """All that the server says until it hangs up."""
    reader, writer = await dial(at)
    writer.write(data)
    async with asyncio.timeout(20):
        said = await reader.read()
    writer.close()
    return said


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body = await read_body(receive, {}, 1 << 24, None)
    line = f"{scope['method']} {scope['path']} {scope['query_string'].decode()} ".encode()
    await respond(send, 200, line + body, {b"x-a": b"1"})


def in_pieces(*pieces: bytes, end: bool = True) -> App:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if end:
            await send({"type": "http.response.body"})

    return app


async def test_requests_on_one_connection_are_answered_in_order(serve: Serve) -> None:
    post = b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"
    said = await ask(await serve(echo), GET + post + LAST)
    assert [b"GET /a b c=d " in said, b"POST /  abc" in said, said.count(b"HTTP/1.1 200 OK")] == [
        True,
        True,
        3,
    ]
    assert said.index(b"GET /a b") < said.index(b"POST /") < said.index(b"connection: close")


async def test_a_chunked_body_and_one_larger_than_the_buffer_arrive_whole(serve: Serve) -> None:
    chunks = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    large = b"POST / HTTP/1.1\r\nconnection: close\r\ncontent-length: 1000000\r\n\r\n" + b"x" * 1_000_000
    said = await ask(await serve(echo), chunks + large)
    assert b"POST /  abcde" in said and said.count(b"x" * 1_000_000) == 1


async def test_what_comes_in_pieces_is_chunked(serve: Serve) -> None:
    said = await ask(await serve(in_pieces(b"ab", b"", b"c")), LAST)
    assert b"transfer-encoding: chunked" in said and said.endswith(b"\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")


async def test_to_http_1_0_it_ends_with_the_connection(serve: Serve) -> None:
    said = await ask(await serve(in_pieces(b"ab", b"c")), b"GET / HTTP/1.0\r\n\r\n")
    assert b"chunked" not in said and said.endswith(b"connection: close\r\n\r\nabc")


async def test_a_head_request_gets_no_body(serve: Serve) -> None:
    said = await ask(await serve(echo), b"HEAD / HTTP/1.1\r\nconnection: close\r\n\r\n")
    assert b"content-length: 8" in said and said.endswith(b"\r\n\r\n")


async def test_the_head_leaves_before_a_body_that_takes_its_time(serve: Serve) -> None:
    go_on = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"late"})

    reader, writer = await dial(await serve(app))
    writer.write(LAST)
    async with asyncio.timeout(20):
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        go_on.set()
        assert await reader.read() == b"4\r\nlate\r\n0\r\n\r\n"
    writer.close()


@pytest.mark.parametrize("declared", [None, b"5"], ids=["chunked", "with a length"])
async def test_a_response_that_is_not_ended_is_cut(serve: Serve, declared: bytes | None) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START | {"headers": [(b"content-length", declared)] if declared else []})
        await send({"type": "http.response.body", "body": b"abc", "more_body": True})
        raise ValueError("broken")

    said = await ask(await serve(app), GET)
    assert said.endswith(b"abc" if declared else b"3\r\nabc\r\n")


async def test_a_broken_application_is_500_and_others_are_served(serve: Serve) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/silent":
            return
        if scope["path"] == "/split":
            await respond(send, 200, b"", {b"x": b"a\r\nx-evil: 1"})
        raise ValueError("broken")

    at = await serve(app)
    for path in (b"/", b"/silent", b"/split"):
        said = await ask(at, GET.replace(b"/a%20b", path))
        assert said.startswith(b"HTTP/1.1 500") and b"evil" not in said


async def test_who_waits_for_100_is_told_to_go_on(serve: Serve) -> None:
    reader, writer = await dial(await serve(echo))
    writer.write(b"POST / HTTP/1.1\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    async with asyncio.timeout(20):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"ab")
        assert (await reader.read()).endswith(b"POST /  ab")
    writer.close()


async def test_past_the_limit_connections_are_503(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 1)
    at = await serve(echo)
    reader, writer = await dial(at)
    writer.write(GET)
    assert b"200 OK" in await reader.readuntil(b"\r\n")
    assert (await ask(at, b"")).startswith(b"HTTP/1.1 503")
    writer.close()


async def test_what_is_being_answered_when_it_stops_comes_to_its_end() -> None:
    begun = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await asyncio.sleep(0.05)
        await respond(send, 200, b"done", {})

    at = await Listener.open(app, "127.0.0.1", 0)
    asking = asyncio.create_task(ask(at, GET))
    await begun.wait()
    await at.aclose()
    assert (await asking).endswith(b"done")


async def test_a_caller_who_does_not_read_stops_the_application(serve: Serve) -> None:
    sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send(START)
        while sent < 1000:
            sent += 1
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})

    reader, writer = await dial(await serve(app))
    writer.write(GET)
    await reader.readuntil(b"\r\n\r\n")
    before = -1
    async with asyncio.timeout(20):
        while sent != before:
            before = sent
            await asyncio.sleep(0.2)
    assert sent < 100, "a gigabyte would have been kept"
    writer.transport.abort()
