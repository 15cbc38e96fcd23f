"""Attacks by connection: slow, endless, huge, crowded. Each is refused, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from palestra.harness_proxy import listener
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.guarded import HEAD_BYTES, protocol
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.sessions import Session
from palestra.harness_proxy.waiting import Patience
from palestra.trajectories.model import Sampling

BODY = orjson.dumps({"messages": [{"role": "user", "content": "Hi"}]})
HEAD_S = 0.5


@pytest.fixture
async def proxy(rendering: Rendering, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    """Listens, waits half a second for a head and for a body."""
    monkeypatch.setattr(listener, "GuardedProtocol", protocol(HEAD_S))
    engine = ScriptedEngine(rendering, lambda prompt, session: "Hello.")
    made = Proxy(engine, rendering, max_body_bytes=1 << 20, patience=Patience(body_s=0.5))
    await made.start()
    yield made
    await made.aclose()


@pytest.fixture
def session(proxy: Proxy) -> Session:
    return proxy.open("r", mode="train", sampling=Sampling(max_tokens=16))


async def dial(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = proxy.base_url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


def post(session: Session, body: bytes = BODY, path: str = "/v1/chat/completions", **headers: str) -> bytes:
    fields = {"host": "x", "authorization": f"Bearer {session.key}", "content-length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in (fields | headers).items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


async def said(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the connection is closed."""
    async with asyncio.timeout(20):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def talk(proxy: Proxy, data: bytes, *, end: bool = False) -> bytes:
    """Send, and read the first answer."""
    reader, writer = await dial(proxy)
    writer.write(data)
    if end:
        writer.write_eof()
    try:
        async with asyncio.timeout(20):
            return await reader.read(1 << 20)
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def check_unharmed(proxy: Proxy, session: Session, calls: int = 1) -> None:
    """The proxy serves, and the session has exactly so many calls."""
    assert status(await talk(proxy, post(session))) == 200
    recording = proxy.close(session)
    assert len(recording.calls) == calls and recording.failure is None


async def test_a_head_that_never_ends_is_408(proxy: Proxy, session: Session) -> None:
    reader, writer = await dial(proxy)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
    assert status(await said(reader)) == 408
    writer.close()
    await check_unharmed(proxy, session)


async def test_a_head_byte_by_byte_is_408(proxy: Proxy, session: Session) -> None:
    reader, writer = await dial(proxy)

    async def drip() -> None:
        for byte in b"GET / HTTP/1.1\r\nx: " + b"y" * 1000:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    assert status(await said(reader)) == 408
    dripping.cancel()
    writer.close()
    await check_unharmed(proxy, session)


async def test_the_second_head_of_a_connection_is_timed_too(proxy: Proxy, session: Session) -> None:
    reader, writer = await dial(proxy)
    writer.write(post(session))
    assert b"200 OK" in await reader.readuntil(b"\r\n")
    writer.write(b"POST /v1/chat")
    assert b"408 Request Timeout" in await said(reader)
    writer.close()
    await check_unharmed(proxy, session, calls=2)


async def test_a_body_that_never_ends_is_408(proxy: Proxy, session: Session) -> None:
    answer = await talk(proxy, post(session)[:-5])
    assert status(answer) == 408 and b"did not arrive within 0.5 s" in answer
    await check_unharmed(proxy, session)


async def test_a_connection_that_says_nothing_is_closed(proxy: Proxy, session: Session) -> None:
    reader, writer = await dial(proxy)
    assert b"408" in await said(reader)
    writer.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * HEAD_BYTES,
        b"GET / HTTP/1.1\r\nx: " + b"y" * (4 * HEAD_BYTES),
        b"GET /" + b"a" * (4 * HEAD_BYTES) + b" HTTP/1.1\r\n",
    ],
    ids=["many headers", "a long header", "a long path"],
)
async def test_a_head_that_is_too_large_is_431(proxy: Proxy, session: Session, head: bytes) -> None:
    assert status(await talk(proxy, head)) == 431
    await check_unharmed(proxy, session)


async def test_a_large_body_right_behind_its_head_is_no_large_head(proxy: Proxy, session: Session) -> None:
    content = "x" * (2 * HEAD_BYTES)
    body = orjson.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 1})
    assert status(await talk(proxy, post(session, body))) == 200


async def test_an_oversized_body_without_a_length_is_413(proxy: Proxy, session: Session) -> None:
    head = post(session, b"", **{"transfer-encoding": "chunked"}).replace(b"content-length: 0\r\n", b"")
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    assert status(await talk(proxy, head + chunk * 20)) == 413
    await check_unharmed(proxy, session)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
        b"POST / HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nx\x00: y\r\n\r\n",
    ],
    ids=["zeros", "version", "negative length", "two lengths", "smuggling", "path", "header name"],
)
async def test_what_is_no_http_is_400(proxy: Proxy, session: Session, data: bytes) -> None:
    assert status(await talk(proxy, data)) == 400
    await check_unharmed(proxy, session)


async def test_pipelined_requests_are_answered_in_order_each_once(proxy: Proxy, session: Session) -> None:
    bodies = [orjson.dumps({"messages": [{"role": "user", "content": f"{n}"}]}) for n in range(5)]
    reader, writer = await dial(proxy)
    writer.write(b"".join(post(session, body) for body in bodies))
    calls = [int((await reader.readuntil(b"\r\n\r\n")).split(b"x-palestra-call: ")[1][:1]) for _ in bodies]
    writer.close()
    assert calls == list(range(5))
    assert len(proxy.close(session).calls) == 5


async def test_a_request_smuggled_behind_another_needs_a_key_of_its_own(
    proxy: Proxy, session: Session
) -> None:
    reader, writer = await dial(proxy)
    keyless = post(session).replace(session.key.encode(), b"stolen")
    writer.write(post(session) + keyless)
    first = await reader.readuntil(b"\r\n\r\n")
    second = (await reader.readuntil(b"HTTP/1.1")) + await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert b"200 OK" in first and b"401" in second
    assert len(proxy.close(session).calls) == 1


@pytest.mark.parametrize(
    "path",
    [
        "/s/{key}/../v1/chat/completions",
        "/s/{key}/v1/../../etc/passwd",
        "/s/{key}",
        "/s//v1/chat/completions",
        "/s/%2e%2e/v1/chat/completions",
        "/S/{key}/v1/chat/completions",
        "/v1/chat/completions/..",
        "//v1/chat/completions",
        "/v1/chat/completions%00",
        "/s/{key}x/v1/chat/completions",
    ],
)
async def test_path_tricks_reach_nothing(proxy: Proxy, session: Session, path: str) -> None:
    asked = post(session, path=path.format(key=session.key))
    asked = asked.replace(b"authorization: Bearer", b"x-other:")
    assert status(await talk(proxy, asked)) in (400, 401, 404, 405)
    await check_unharmed(proxy, session)


async def test_a_thousand_slow_callers_cost_little_and_stop_nobody(proxy: Proxy, session: Session) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    crowd: list[Any] = [await dial(proxy) for _ in range(1000)]
    for _, writer in crowd:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nx: ")
    assert status(await talk(proxy, post(session))) == 200
    ends = await asyncio.gather(*(said(reader) for reader, _ in crowd))
    assert {end[9:12] for end in ends} == {b"408"}
    for _, writer in crowd:
        writer.close()
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 256 * 1024, (
        "a quarter of a megabyte for each caller and its own client in this process"
    )
    await check_unharmed(proxy, session, calls=2)


async def test_a_key_that_was_used_up_opens_nothing(proxy: Proxy, session: Session) -> None:
    other = proxy.open("other", mode="train", sampling=Sampling(max_tokens=16))
    proxy.close(session)
    for asked in (post(session), post(session, path=f"/s/{session.key}/v1/chat/completions")):
        assert status(await talk(proxy, asked)) == 401
    with_both = post(other, path=f"/s/{session.key}/v1/chat/completions")
    assert status(await talk(proxy, with_both)) == 401, "a key in the path is the only one that counts"
    assert proxy.close(other).calls == ()
