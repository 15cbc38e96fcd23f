"""The proxy on a real socket, driven by the real OpenAI SDK and by raw TCP."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import openai
import orjson
import pytest

from palestra.harness_proxy.engines.base import EngineUnavailableError
from palestra.harness_proxy.engines.scripted import Script, ScriptedEngine
from palestra.harness_proxy.errors import ProxyStateError
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.sessions import Session
from palestra.trajectories.model import Sampling

USER: Any = {"role": "user", "content": "How many users are there?"}
TOOLS: Any = [{"type": "function", "function": {"name": "query", "parameters": {"type": "object"}}}]
QUERY = 'Let me look.\n<tool_call>\n{"name": "query", "arguments": {"sql": "SELECT 1"}}\n</tool_call>'
Serve = Callable[..., Awaitable[Proxy]]


@pytest.fixture
async def serve(rendering: Rendering) -> AsyncIterator[Serve]:
    proxies: list[Proxy] = []

    async def start(script: Script, **engine: Any) -> Proxy:
        proxy = Proxy(ScriptedEngine(rendering, script, **engine), rendering, retry_after_s=0.01)
        await proxy.start()
        proxies.append(proxy)
        return proxy

    yield start
    for proxy in proxies:
        await proxy.aclose()


def open_(proxy: Proxy, **options: Any) -> Session:
    return proxy.open("r", mode="train", sampling=Sampling(max_tokens=256), **options)


def client(session: Session, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=session.base_url, api_key=session.key, **options)


async def test_the_openai_sdk_plays_a_tool_loop(serve: Serve) -> None:
    proxy = await serve([QUERY, "There are 42."])
    session = open_(proxy)
    async with client(session) as sdk:
        history = [USER]
        first = (await sdk.chat.completions.create(model="any", messages=history, tools=TOOLS)).choices[0]
        assert first.finish_reason == "tool_calls" and first.message.tool_calls is not None
        history += [
            first.message.model_dump(),
            {"role": "tool", "tool_call_id": first.message.tool_calls[0].id, "content": "[[42]]"},
        ]
        done = await sdk.chat.completions.create(model="any", messages=history, tools=TOOLS)
    assert done.choices[0].message.content == "There are 42."
    assert done.usage is not None and done.usage.completion_tokens > 0
    recording = proxy.close(session)
    assert [c.prompt_mode for c in recording.calls] == ["render", "bridge"]
    assert all(c.delivered for c in recording.calls)


async def test_the_openai_sdk_streams(serve: Serve) -> None:
    proxy = await serve([QUERY])
    session = open_(proxy)
    async with client(session) as sdk:
        stream = await sdk.chat.completions.create(
            model="any", messages=[USER], tools=TOOLS, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    deltas = [c.choices[0].delta for c in chunks if c.choices]
    assert "".join(d.content or "" for d in deltas) == "Let me look."
    pieces = [d.tool_calls[0].function for d in deltas if d.tool_calls]
    assert [p.name for p in pieces if p is not None] == ["query", None]
    assert "".join(p.arguments or "" for p in pieces if p is not None) == '{"sql": "SELECT 1"}'
    assert chunks[-2].choices[0].finish_reason == "tool_calls"
    assert chunks[-1].usage is not None
    assert [c.delivered for c in proxy.close(session).calls] == [True]


async def test_the_sdk_gets_over_an_outage_by_itself(serve: Serve) -> None:
    proxy = await serve([EngineUnavailableError("starting"), "Hello."])
    session = open_(proxy)
    async with client(session, max_retries=2) as sdk:
        reply = await sdk.chat.completions.create(model="any", messages=[USER])
    assert reply.choices[0].message.content == "Hello."
    assert proxy.close(session).failure is None


async def test_the_sdk_raises_what_it_raises_at_openai(serve: Serve) -> None:
    proxy = await serve([])
    session = open_(proxy)
    async with client(session, max_retries=0) as sdk:
        with pytest.raises(openai.InternalServerError):
            await sdk.chat.completions.create(model="any", messages=[USER])
        with pytest.raises(openai.BadRequestError, match="n must be 1"):
            await sdk.chat.completions.create(model="any", messages=[USER], n=2)
        proxy.pause()
        with pytest.raises(openai.RateLimitError):
            await sdk.chat.completions.create(model="any", messages=[USER])
        proxy.close(session)
        with pytest.raises(openai.AuthenticationError):
            await sdk.chat.completions.create(model="any", messages=[USER])


async def test_a_key_in_the_path_needs_no_header(serve: Serve) -> None:
    proxy = await serve(["Hello."])
    session = open_(proxy)
    async with openai.AsyncOpenAI(base_url=session.path_url, api_key="none") as sdk:
        reply = await sdk.chat.completions.create(model="any", messages=[USER])
        assert [m.id async for m in sdk.models.list()] == ["palestra"]
    assert reply.choices[0].message.content == "Hello."
    assert len(proxy.close(session).calls) == 1


async def test_probes_are_answered_and_not_recorded(serve: Serve) -> None:
    proxy = await serve([])
    session = open_(proxy)
    async with httpx.AsyncClient(base_url=proxy.base_url) as http:
        assert (await http.head("/")).status_code == 200
        assert (await http.get(f"/s/{session.key}/")).status_code == 200
        assert (await http.get("/v1/models")).json()["data"][0]["id"] == "palestra"
        assert (await http.get("/v1/chat/completions")).status_code == 405
        assert (await http.post("/v1/unknown")).status_code == 404
        upgrade = {"connection": "upgrade", "upgrade": "websocket"}
        assert (await http.get("/v1/responses", headers=upgrade)).status_code == 426
    recording = proxy.close(session)
    assert (recording.calls, recording.findings) == ((), ())


async def _send(proxy: Proxy, session: Session) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = proxy.base_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = orjson.dumps({"messages": [USER]})
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
        b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b" % (session.key.encode(), len(body), body)
    )
    await writer.drain()
    return reader, writer


async def test_a_caller_who_hangs_up_is_noticed(serve: Serve) -> None:
    proxy = await serve(["Hello.", "Never."], latency_s=0.1)
    session = open_(proxy)
    _, writer = await _send(proxy, session)
    await asyncio.sleep(0.03)
    writer.close()
    await writer.wait_closed()
    await proxy.drain()
    assert [c.delivered for c in session.recording().calls] == [False]
    reader, writer = await _send(proxy, session)
    assert b"Hello." in await reader.readuntil(b"Hello.")
    writer.close()
    assert [c.delivered for c in proxy.close(session).calls] == [True]


async def test_the_proxy_stops_with_calls_in_flight(serve: Serve) -> None:
    proxy = await serve(["Hello."], latency_s=60)
    session = open_(proxy)
    async with client(session, max_retries=0) as sdk:
        running = asyncio.create_task(sdk.chat.completions.create(model="any", messages=[USER]))
        await asyncio.sleep(0.05)
        await proxy.aclose()
        await proxy.aclose()
        with pytest.raises((openai.AuthenticationError, openai.APIConnectionError)):
            await running


async def test_out_of_order(rendering: Rendering, serve: Serve) -> None:
    proxy = Proxy(ScriptedEngine(rendering, []), rendering)
    with pytest.raises(ProxyStateError, match="await proxy.start"):
        open_(proxy)
    started = await serve([])
    with pytest.raises(ProxyStateError, match="listens already"):
        await started.start()
    taken = int(started.base_url.rsplit(":", 1)[1])
    with pytest.raises(OSError):
        await proxy.start(port=taken)


async def test_keys_are_fresh_and_long(serve: Serve) -> None:
    proxy = await serve([])
    keys = {open_(proxy).key for _ in range(100)}
    assert len(keys) == 100 and min(map(len, keys)) >= 43


async def test_the_same_proxy_answers_on_a_unix_socket(serve: Serve) -> None:
    """One socket however many ask for it at once, gone with the proxy."""
    proxy = await serve(["Hello."])
    session = proxy.open("r", mode="train", sampling=Sampling())
    path, same = await asyncio.gather(proxy.unix_socket(), proxy.unix_socket())
    assert path == same and path.parent.stat().st_mode & 0o077 == 0
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path))) as client:
        headers = {"authorization": f"Bearer {session.key}"}
        body = {"model": "m", "messages": [USER]}
        answer = await client.post("http://palestra/v1/chat/completions", json=body, headers=headers)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello."
    assert len(proxy.close(session).calls) == 1
    await proxy.aclose()
    assert not path.exists()
    with pytest.raises(ProxyStateError, match="does not listen"):
        await proxy.unix_socket()
