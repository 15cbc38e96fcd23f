"""Anthropic Messages, driven by the real SDK over a socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from palestra.harness_proxy.engines.base import EngineUnavailableError, PromptTooLongError
from palestra.harness_proxy.sessions import Session

TOOLS: Any = [{"name": "shell", "description": "Run.", "input_schema": {"type": "object"}}]
USER: Any = {"role": "user", "content": "How many?"}
ASK: Any = {"model": "claude-x", "max_tokens": 500, "thinking": {"type": "adaptive"}}
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


@asynccontextmanager
async def client(session: Session, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=session.root_url, api_key=session.key, **options) as sdk:
        yield sdk


def results(message: Message) -> Any:
    calls = [b for b in message.content if b.type == "tool_use"]
    blocks: Any = [{"type": "tool_result", "tool_use_id": c.id, "content": "42"} for c in calls]
    return {"role": "user", "content": blocks}


async def ask(sdk: anthropic.AsyncAnthropic, streamed: bool, **options: Any) -> Message:
    message: Message
    if not streamed:
        message = await sdk.messages.create(**ASK, **options)
        return message
    async with sdk.messages.stream(**ASK, **options) as stream:
        message = await stream.get_final_message()
    return message


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_tool_loop_is_one_branch(stand: Any, session_script: Any, streamed: bool) -> None:
    s = await stand(session_script)
    session = s.open()
    async with client(session) as sdk:
        history = [USER]
        seen = []
        for _ in session_script:
            message = await ask(sdk, streamed, system="Be brief.", messages=history, tools=TOOLS)
            Message.model_validate(message.model_dump())
            seen.append([b.type for b in message.content])
            history += [{"role": "assistant", "content": message.content}, results(message)]
    assert seen == [
        ["thinking", "text", "tool_use"],
        ["thinking", "tool_use", "tool_use"],
        ["thinking", "text"],
    ]
    assert message.stop_reason == "end_turn" and message.usage.output_tokens > 0
    s.close_unbroken(session)


async def test_what_the_sdk_reads_is_what_was_sampled(stand: Any, session_script: Any) -> None:
    s = await stand(session_script)
    session = s.open()
    async with client(session) as sdk:
        whole = await ask(sdk, False, messages=[USER], tools=TOOLS)
    content: Any = whole.content
    thinking, text, call = content
    assert thinking.thinking.strip() == "First  look." and thinking.signature
    assert text.text == "Let me look."
    assert call.input == {"b": "é/", "command": "ls", "n": 10000.0}
    assert list(call.input) == ["b", "command", "n"]
    assert whole.stop_reason == "tool_use" and whole.model == "claude-x"


async def test_the_events_are_those_of_the_api(stand: Any, session_script: Any) -> None:
    s = await stand(session_script)
    session = s.open()
    async with client(session) as sdk:
        stream = await sdk.messages.create(**ASK, messages=[USER], tools=TOOLS, stream=True)
        events = [event.model_dump() async for event in stream]
    for event in events:
        EVENTS.validate_python(event)
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert [e["type"] for e in events] == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"],
        *block,
        *block,
        "message_delta",
        "message_stop",
    ]
    deltas = [e["delta"]["type"] for e in events if e["type"] == "content_block_delta"]
    assert deltas == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_thinking_is_sent_only_to_those_who_asked_and_kept_all_the_same(
    stand: Any, session_script: Any
) -> None:
    s = await stand(session_script)
    session = s.open()
    async with client(session) as sdk:
        plain: Any = {"model": "m", "max_tokens": 500, "tools": TOOLS}
        first = await sdk.messages.create(**plain, messages=[USER])
        assert [b.type for b in first.content] == ["text", "tool_use"]
        history: Any = [USER, {"role": "assistant", "content": first.content}, results(first)]
        await sdk.messages.create(**plain, messages=history)
    recording = s.close_unbroken(session)
    prompt = s.engine._encoder.decode(s.engine.calls[1].prompt_ids)
    assert "First  look." in prompt and len(recording.calls) == 2


async def test_dropped_reasoning_can_fork(stand: Any, session_script: Any) -> None:
    s = await stand(session_script)
    session = s.open(dropped_reasoning="fork")
    async with client(session) as sdk:
        first = await ask(sdk, False, messages=[USER], tools=TOOLS)
        rest: Any = [b for b in first.content if b.type != "thinking"]
        history = [USER, {"role": "assistant", "content": rest}, results(first)]
        await ask(sdk, False, messages=history, tools=TOOLS)
    drift = s.close(session).calls[1].drift
    assert (drift.kind, drift.position) == ("reasoning", 1)
    assert "First  look." not in s.engine._encoder.decode(s.engine.calls[1].prompt_ids)


async def test_statuses_are_those_that_the_sdk_acts_on(stand: Any) -> None:
    s = await stand([EngineUnavailableError("starting"), PromptTooLongError(900, 800)])
    session = s.open()
    asked: Any = ASK | {"messages": [USER]}
    async with client(session, max_retries=0) as sdk:
        with pytest.raises(anthropic.InternalServerError) as overloaded:
            await sdk.messages.create(**asked)
        assert (overloaded.value.status_code, overloaded.value.type) == (529, "overloaded_error")
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 900 tokens > 800 maximum"):
            await sdk.messages.create(**asked)
        with pytest.raises(anthropic.InternalServerError) as failed:
            await sdk.messages.create(**asked)
        assert failed.value.status_code == 500
        s.proxy.pause()
        with pytest.raises(anthropic.RateLimitError):
            await sdk.messages.create(**asked)
        s.proxy.resume()
        with pytest.raises(anthropic.BadRequestError, match="reads no images"):
            image: Any = [{"type": "image", "source": {"type": "url", "url": "http://x"}}]
            await sdk.messages.create(**(asked | {"messages": [{"role": "user", "content": image}]}))
        s.close(session)
        with pytest.raises(anthropic.AuthenticationError):
            await sdk.messages.create(**asked)


async def test_a_streamed_call_fails_with_a_status_too(stand: Any) -> None:
    s = await stand([])
    session = s.open()
    async with client(session) as sdk:
        with pytest.raises(anthropic.InternalServerError):
            await ask(sdk, True, messages=[USER])
    assert len(s.engine.calls) == 0
    assert s.close(session).failure.boundary == "provider"


async def test_the_sdk_gets_over_an_outage_by_itself(stand: Any) -> None:
    s = await stand([EngineUnavailableError("starting"), "Hello."])
    session = s.open()
    async with client(session, max_retries=2) as sdk:
        message = await ask(sdk, True, messages=[USER])
    assert message.content[-1].type == "text" and message.content[-1].text == "Hello."
    assert s.close(session).failure is None


async def test_limits_are_stops(stand: Any) -> None:
    s = await stand(["Hello, this is a long reply.", "Never."])
    session = s.open(max_calls=1)
    async with client(session) as sdk:
        cut = await sdk.messages.create(model="m", max_tokens=2, messages=[USER])
        assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
        stopped = await ask(sdk, True, messages=[USER, {"role": "assistant", "content": "x"}, USER])
    assert stopped.stop_reason == "end_turn" and "budget" in stopped.content[0].text  # type: ignore[union-attr]
    recording = s.close(session)
    assert len(recording.calls) == 1 and recording.stops == ("max_calls",)


async def test_side_routes_are_answered_and_not_recorded(stand: Any) -> None:
    s = await stand(["Hello."])
    session = s.open()
    async with client(session) as sdk:
        counted = await sdk.messages.count_tokens(model="m", messages=[USER], system="Be brief.", tools=TOOLS)
        assert [m.id async for m in sdk.models.list()] == ["palestra"]
        assert (await sdk.models.retrieve("x")).id == "x"
        assert not s.engine.calls
        reply = await ask(sdk, False, messages=[USER], system="Be brief.", tools=TOOLS)
        with pytest.raises(anthropic.NotFoundError):
            await sdk.messages.batches.list()
    assert counted.input_tokens == reply.usage.input_tokens
    async with httpx.AsyncClient(base_url=s.proxy.base_url) as http:
        assert (await http.post("/v1/messages/count_tokens", json={})).status_code == 401
        assert (await http.get("/v1/messages")).json()["type"] == "error"
    recording = s.close(session)
    assert len(recording.calls) == 1 and recording.findings == ()


@pytest.mark.parametrize("how", ["x-api-key", "bearer", "path"])
async def test_a_key_by_any_way(stand: Any, how: str) -> None:
    s = await stand(["Hello."])
    session = s.open()
    options: dict[str, Any] = {
        "x-api-key": {"base_url": session.root_url, "api_key": session.key},
        "bearer": {"base_url": session.root_url, "auth_token": session.key},
        "path": {"base_url": session.path_root_url, "api_key": "none"},
    }
    async with anthropic.AsyncAnthropic(**options[how]) as sdk:
        await ask(sdk, False, messages=[USER])
    assert len(s.close(session).calls) == 1
