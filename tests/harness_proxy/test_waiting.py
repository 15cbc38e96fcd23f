"""Callers who wait, leave, come back, or are cut off: on real sockets, with the official SDKs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anthropic
import httpx
import openai
import orjson
import pytest
from google import genai
from google.genai import errors as genai_errors

from palestra.harness_proxy.engines.base import EngineUnavailableError
from palestra.harness_proxy.engines.scripted import Script, ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.sessions import Session
from palestra.harness_proxy.waiting import Patience
from palestra.trajectories.model import Sampling

Serve = Callable[..., Awaitable[Proxy]]
SAID = "There are 42."
LIVELY = Patience(keepalive_s=0.05, abandon_after_s=0.1, look_s=0.02)
SLOW_S = 0.4


@pytest.fixture
async def serve(rendering: Rendering) -> AsyncIterator[Serve]:
    proxies: list[Proxy] = []

    async def start(script: Script, patience: Patience = LIVELY, **engine: Any) -> Proxy:
        scripted = ScriptedEngine(rendering, script, **engine)
        proxy = Proxy(scripted, rendering, retry_after_s=0.01, patience=patience)
        await proxy.start()
        proxies.append(proxy)
        return proxy

    yield start
    for proxy in proxies:
        await proxy.aclose()


def open_(proxy: Proxy) -> Session:
    return proxy.open("r", mode="train", sampling=Sampling(max_tokens=64))


# Each official SDK, streaming: (what it put together); exceptions fly.


async def chat(session: Session) -> str:
    async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.key, max_retries=0) as sdk:
        said: list[str] = []
        messages: Any = [{"role": "user", "content": "Hi"}]
        async for chunk in await sdk.chat.completions.create(model="m", messages=messages, stream=True):
            said += [c.delta.content or "" for c in chunk.choices]
    return "".join(said)


async def responses(session: Session) -> str:
    url, key = session.base_url, session.key
    async with (
        openai.AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as sdk,
        sdk.responses.stream(model="m", input="Hi") as stream,
    ):
        return (await stream.get_final_response()).output_text


async def messages(session: Session) -> str:
    key, url = session.key, session.root_url
    async with anthropic.AsyncAnthropic(api_key=key, base_url=url, max_retries=0) as sdk:
        user: Any = [{"role": "user", "content": "Hi"}]
        async with sdk.messages.stream(model="m", max_tokens=50, messages=user) as stream:
            return await stream.get_final_text()


async def gemini(session: Session) -> str:
    async with httpx.AsyncClient() as http:
        options: Any = {"base_url": session.root_url, "httpx_async_client": http}
        sdk = genai.Client(api_key=session.key, http_options=options)
        try:
            chunks = await sdk.aio.models.generate_content_stream(model="m", contents="Hi")
            return "".join([chunk.text or "" async for chunk in chunks])
        finally:
            await sdk.aio.aclose()
            sdk.close()


SDKS = {"chat": chat, "responses": responses, "anthropic": messages, "gemini": gemini}
ERRORS = {
    "chat": openai.APIError,
    "responses": openai.APIError,
    "anthropic": anthropic.APIStatusError,
    "gemini": genai_errors.APIError,
}
every_sdk = pytest.mark.parametrize("name", SDKS)


@every_sdk
async def test_keepalives_are_ignored(serve: Serve, name: str) -> None:
    proxy = await serve([SAID], latency_s=SLOW_S)
    session = open_(proxy)
    assert await SDKS[name](session) == SAID
    assert [c.delivered for c in proxy.close(session).calls] == [True]


@every_sdk
async def test_a_failure_after_keepalives_raises(serve: Serve, name: str) -> None:
    proxy = await serve([EngineUnavailableError("the engine is lost")], latency_s=SLOW_S)
    session = open_(proxy)
    with pytest.raises(ERRORS[name], match="the engine is lost"):
        await SDKS[name](session)
    recording = proxy.close(session)
    assert recording.calls == () and recording.failure is not None and recording.failure.retryable


BODY = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


async def stream_of(
    session: Session, body: Any = BODY, began: asyncio.Event | None = None
) -> tuple[int, bytes, bool]:
    """(status, bytes, whether it came to a clean end). `began` is set by the first byte."""
    got = b""
    async with httpx.AsyncClient(timeout=10) as http:
        head = {"authorization": f"Bearer {session.key}"}
        async with http.stream("POST", f"{session.base_url}/chat/completions", json=body, headers=head) as r:
            try:
                async for data in r.aiter_bytes():
                    got += data
                    if began is not None:
                        began.set()
            except httpx.RemoteProtocolError:
                return r.status_code, got, False
            return r.status_code, got, True


async def test_a_failure_after_keepalives_never_ends_cleanly(serve: Serve) -> None:
    proxy = await serve([EngineUnavailableError("lost")], latency_s=SLOW_S)
    status, got, clean = await stream_of(open_(proxy))
    assert (status, clean) == (200, False)
    assert got.startswith(b": keep-alive\n\n") and b'"error":{"message":"lost"' in got
    assert b"[DONE]" not in got and b"choices" not in got


async def test_a_failure_before_keepalives_has_its_status(serve: Serve) -> None:
    proxy = await serve(
        [EngineUnavailableError("lost")], Patience(keepalive_s=10, look_s=0.02), latency_s=0.1
    )
    assert (await stream_of(open_(proxy)))[::2] == (503, True)


async def test_a_caller_who_wants_no_stream_gets_no_keepalive(serve: Serve) -> None:
    proxy = await serve([EngineUnavailableError("lost")], latency_s=SLOW_S)
    status, got, clean = await stream_of(open_(proxy), BODY | {"stream": False})
    assert (status, clean) == (503, True) and orjson.loads(got)["error"]["message"] == "lost"


async def test_keepalives_can_be_turned_off(serve: Serve) -> None:
    proxy = await serve([SAID], Patience(keepalive_s=None, look_s=0.02), latency_s=0.2)
    _, got, clean = await stream_of(open_(proxy))
    assert clean and b"keep-alive" not in got and b"[DONE]" in got


async def hang_up(session: Session) -> None:
    """Ask, wait until the engine works, and leave."""
    asking = asyncio.create_task(stream_of(session))
    while not session.in_flight:
        await asyncio.sleep(0.005)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_a_call_whose_caller_left_is_given_up(serve: Serve) -> None:
    proxy = await serve([SAID, "Again."], latency_s=60)
    session = open_(proxy)
    await hang_up(session)
    async with asyncio.timeout(10):
        await proxy.drain()
    recording = proxy.close(session)
    assert recording.calls == () and recording.nodes == () and recording.failure is None
    assert any("given up" in f for f in recording.findings)


async def test_the_number_and_seed_of_a_call_given_up_go_to_the_next(serve: Serve) -> None:
    proxy = await serve([SAID], latency_s=0.3)
    session = open_(proxy)
    await hang_up(session)
    await proxy.drain()
    assert (await stream_of(session))[0] == 200
    assert [c.seq for c in proxy.close(session).calls] == [0]


async def test_who_comes_back_in_time_gets_the_reply_that_was_begun(serve: Serve) -> None:
    proxy = await serve(
        [SAID, "Never."], Patience(keepalive_s=0.05, abandon_after_s=2, look_s=0.02), latency_s=0.3
    )
    session = open_(proxy)
    await hang_up(session)
    _, got, clean = await stream_of(session)
    assert clean and SAID.encode() in got
    recording = proxy.close(session)
    assert [c.delivered for c in recording.calls] == [True]


async def test_who_waits_for_anothers_call_keeps_it_alive(serve: Serve) -> None:
    patience = Patience(keepalive_s=0.05, abandon_after_s=0.3, look_s=0.02)
    proxy = await serve([SAID, "Never."], patience, latency_s=1.0)
    session = open_(proxy)
    await hang_up(session)
    _, got, clean = await stream_of(session)
    assert clean and SAID.encode() in got
    assert len(proxy.close(session).calls) == 1


async def test_a_reply_that_was_cut_on_its_way_is_given_again(serve: Serve) -> None:
    patience = Patience(keepalive_s=0.05, abandon_after_s=None, look_s=0.02)
    proxy = await serve([SAID, "Never."], patience, latency_s=0.2)
    session = open_(proxy)
    await hang_up(session)
    await proxy.drain()
    assert [c.delivered for c in session.recording().calls] == [False]
    _, got, _ = await stream_of(session)
    assert SAID.encode() in got
    assert [c.delivered for c in proxy.close(session).calls] == [True]


async def test_closing_a_session_cuts_streams_that_have_begun(serve: Serve) -> None:
    proxy = await serve([SAID], latency_s=60)
    session = open_(proxy)
    began = asyncio.Event()
    asking = asyncio.create_task(stream_of(session, began=began))
    await began.wait()
    proxy.close(session)
    status, got, clean = await asking
    assert (status, clean) == (200, False) and b"invalid_api_key" in got
