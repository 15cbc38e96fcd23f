"""The proxy before a hosted chat API: all four SDKs, images, retries, refusals; text on record and no tokens."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anthropic
import httpx
import openai
import orjson
import pytest
from aiohttp import web
from google import genai

from palestra.harness_proxy.engines.hosted import HostedEngine
from palestra.harness_proxy.errors import CaptureError, RenderingError
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.sessions import Recording, Session
from palestra.trajectories.exports.formats import FORMATS, Selection, left_out
from palestra.trajectories.exports.trl import sft_rows
from palestra.trajectories.imports.atif import trace_of
from palestra.trajectories.imports.compare import compare_traces
from palestra.trajectories.model import Failure, Message, Rollout, Sampling, Trajectory
from palestra.trajectories.sample import samples

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
DATA_URL = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
CALL = {"id": "up_1", "type": "function", "function": {"name": "shell", "arguments": '{"command":  "ls"}'}}
SCRIPT: list[dict[str, Any]] = [
    {"content": "Let me look.", "reasoning_content": "Hm.", "tool_calls": [CALL]},
    {"content": "There are 42.", "tool_calls": None},
]
USAGE = {
    "prompt_tokens": 50,
    "completion_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 30},
    "completion_tokens_details": {"reasoning_tokens": 4},
}


class Upstream:
    """A chat API that plays messages, after the failures it is told to have."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.keys: list[str] = []
        self.failures: list[tuple[int, str, dict[str, str]]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("authorization", ""))
        if self.failures:
            status, text, headers = self.failures.pop(0)
            return web.Response(status=status, text=text, headers=headers)
        body = await request.json()
        replies = sum(m["role"] == "assistant" for m in body["messages"])
        self.bodies.append(body)
        choice = {"index": 0, "message": {"role": "assistant", **SCRIPT[replies]}, "finish_reason": "stop"}
        return web.json_response({"id": "x", "choices": [choice], "usage": USAGE})


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield made
    await runner.cleanup()


@pytest.fixture
async def proxy(upstream: Upstream) -> AsyncIterator[Proxy]:
    engine = HostedEngine(upstream.url, "big", api_key="secret", retries=2, first_wait_s=0.001)
    made = Proxy(engine, retry_after_s=0.01)
    await made.start()
    yield made
    await made.aclose()
    await engine.aclose()


def opened(proxy: Proxy) -> Session:
    return proxy.open("r", mode="eval", sampling=Sampling(0.5, max_tokens=64, seed=3))


def checked(recording: Recording, upstream: Upstream) -> list[Message]:
    """One conversation of two calls, without tokens; its messages."""
    assert recording.failure is None
    assert [c.prompt_mode for c in recording.calls] == ["chat", "chat"]
    assert [c.parse_status for c in recording.calls] == ["ok", "text"]
    assert all(not len(n.token_ids) for n in recording.nodes)
    parents = [n.parent for n in recording.nodes]
    assert parents == [None, *range(len(parents) - 1)], "a chain"
    assert upstream.bodies[0]["model"] == "big" and upstream.keys[0] == "Bearer secret"
    assert (upstream.bodies[0]["temperature"], upstream.bodies[0]["max_tokens"]) == (0.5, 64)
    last = upstream.bodies[1]["messages"]
    assert [m["role"] for m in last][-2:] == ["assistant", "tool"]
    assert last[-2]["tool_calls"][0]["id"] == last[-1]["tool_call_id"]
    assert last[-2]["reasoning_content"] == "Hm." and last[-1]["content"] == "a b"
    return [n.message for n in recording.nodes]


TOOL: dict[str, Any] = {
    "name": "shell",
    "description": "",
    "parameters": {"type": "object", "properties": {}},
}


async def test_chat_completions(proxy: Proxy, upstream: Upstream) -> None:
    session = opened(proxy)
    client = openai.AsyncOpenAI(base_url=session.base_url, api_key=session.key)
    history: list[Any] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is "},
                {"type": "image_url", "image_url": {"url": DATA_URL}},
                {"type": "text", "text": "this?"},
            ],
        }
    ]
    tools: Any = [{"type": "function", "function": TOOL}]
    first = await client.chat.completions.create(model="m", messages=history, tools=tools)
    call = first.choices[0].message.tool_calls[0]  # type: ignore[index]
    assert call.function.arguments == '{"command":  "ls"}'  # type: ignore[union-attr]
    assert first.usage is not None and first.usage.prompt_tokens_details is not None
    assert first.usage.prompt_tokens_details.cached_tokens == 30
    reply = first.choices[0].message.model_dump(exclude_none=True)
    history += [reply, {"role": "tool", "tool_call_id": call.id, "content": "a b"}]
    last = await client.chat.completions.create(model="m", messages=history, tools=tools)
    assert last.choices[0].message.content == "There are 42."
    recording = proxy.close(session)
    messages = checked(recording, upstream)
    (image,) = messages[0].media
    assert (image.mime, image.offset, recording.blobs[image.sha256]) == ("image/png", 8, PNG)
    sent = upstream.bodies[1]["messages"][0]["content"]
    assert [p["type"] for p in sent] == ["text", "image_url", "text"] and sent[1]["image_url"][
        "url"
    ] == DATA_URL
    await client.close()


async def test_responses(proxy: Proxy, upstream: Upstream) -> None:
    session = opened(proxy)
    client = openai.AsyncOpenAI(base_url=session.base_url, api_key=session.key)
    tools: Any = [{"type": "function", **TOOL, "strict": False}]
    image = {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"}
    history: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}, image]}]
    first = await client.responses.create(model="m", input=history, tools=tools)
    history += [item.model_dump(exclude_none=True) for item in first.output]
    call = next(item for item in first.output if item.type == "function_call")
    history.append({"type": "function_call_output", "call_id": call.call_id, "output": "a b"})
    last = await client.responses.create(model="m", input=history, tools=tools)
    assert last.output_text == "There are 42."
    recording = proxy.close(session)
    (kept,) = checked(recording, upstream)[0].media
    assert recording.blobs[kept.sha256] == b"https://example.org/a.png"
    sent = upstream.bodies[0]["messages"][0]["content"][1]
    assert sent["image_url"]["url"] == "https://example.org/a.png"
    await client.close()


async def test_anthropic(proxy: Proxy, upstream: Upstream) -> None:
    session = opened(proxy)
    client = anthropic.AsyncAnthropic(base_url=session.root_url, api_key=session.key)
    tools: Any = [{"name": "shell", "input_schema": {"type": "object"}}]
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    history: list[Any] = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    asked: Any = {"model": "m", "max_tokens": 100, "tools": tools, "thinking": {"type": "adaptive"}}
    async with client.messages.stream(messages=history, **asked) as stream:
        first = await stream.get_final_message()
    use = next(b for b in first.content if b.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "a b"}
    history += [
        {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in first.content]},
        {"role": "user", "content": [result]},
    ]
    last = await client.messages.create(messages=history, **asked)
    assert last.content[0].type == "text" and last.content[0].text == "There are 42."
    assert (last.usage.input_tokens, last.usage.cache_read_input_tokens) == (20, 30)
    assert checked(proxy.close(session), upstream)[0].media
    await client.close()


async def test_gemini(proxy: Proxy, upstream: Upstream) -> None:
    session = opened(proxy)
    http = httpx.AsyncClient()
    options = genai.types.HttpOptions(base_url=session.root_url, httpx_async_client=http)
    client = genai.Client(api_key=session.key, http_options=options)
    types = genai.types
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[types.FunctionDeclaration(**TOOL)])],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        thinking_config=types.ThinkingConfig(include_thoughts=True),
    )
    image = types.Part.from_bytes(data=PNG, mime_type="image/png")
    history: list[Any] = [types.Content(role="user", parts=[types.Part(text="Hi"), image])]
    first = await client.aio.models.generate_content(model="m", contents=history, config=config)
    assert first.function_calls is not None and first.candidates is not None
    response = types.FunctionResponse(id=first.function_calls[0].id, name="shell", response={"output": "a b"})
    history += [
        first.candidates[0].content,
        types.Content(role="user", parts=[types.Part(function_response=response)]),
    ]
    last = await client.aio.models.generate_content(model="m", contents=history, config=config)
    assert last.text == "There are 42."
    assert last.usage_metadata is not None and last.usage_metadata.thoughts_token_count == 4
    assert checked(proxy.close(session), upstream)[0].media
    await client.aio.aclose()
    await http.aclose()
    client.close()


async def test_a_demonstration_is_exported_for_fine_tuning(proxy: Proxy, upstream: Upstream) -> None:
    """Each reply of the hosted model is in one completion, images by their hash; there are no tokens to train."""
    session = opened(proxy)
    content = [{"type": "image_url", "image_url": {"url": DATA_URL}}, {"type": "text", "text": "What?"}]
    history: list[Any] = [{"role": "user", "content": content}]
    _, body = await ask(proxy, session, history)
    reply = body["choices"][0]["message"]
    history += [reply, {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "a b"}]
    await ask(proxy, session, history)
    recording = proxy.close(session)
    failure = Failure("cancelled", "by hand", "no task")
    rollout = Rollout("r", "run", "g", "t", 0, 1, "eval", "loop", "1", "text", 0, failure=failure)
    trajectory = Trajectory(rollout, recording.nodes, recording.calls, (), {}, recording.blobs)
    (row,) = sft_rows(trajectory)
    image = {"type": "image", "sha256": hashlib.sha256(PNG).hexdigest(), "mime": "image/png"}
    assert row["prompt"] == [{"role": "user", "content": [image, {"type": "text", "text": "What?"}]}]
    assert [m["role"] for m in row["completion"]] == ["assistant", "tool", "assistant"]
    assert row["reward"] is None
    assert not samples(trajectory) and compare_traces(trajectory, trace_of(trajectory)) == []
    form = FORMATS["trl-sft"]
    assert left_out(form, Selection(), rollout) == "no valid score"
    assert left_out(form, Selection(unscored=True), rollout) is None


async def ask(proxy: Proxy, session: Session, messages: Any = None) -> tuple[int, Any]:
    body = {"messages": messages or [{"role": "user", "content": "Hi"}]}
    headers = {"authorization": f"Bearer {session.key}"}
    async with aiohttp.ClientSession() as client:
        url = f"{session.base_url}/chat/completions"
        async with client.post(url, data=orjson.dumps(body), headers=headers) as answer:
            return answer.status, await answer.json()


async def test_what_the_server_had_no_time_for_is_asked_again(proxy: Proxy, upstream: Upstream) -> None:
    upstream.failures = [(429, "slow down", {"retry-after": "0.001"}), (503, "busy", {})]
    session = opened(proxy)
    assert (await ask(proxy, session))[0] == 200
    assert len(upstream.keys) == 3 and proxy.close(session).failure is None


@pytest.mark.parametrize(
    ("status", "text", "answered", "failed"),
    [
        (503, "busy", 503, True),
        (400, "no such parameter", 400, False),
        (401, "wrong key", 500, True),
        (400, "maximum context length is 9 tokens, you sent 12 tokens", 400, False),
    ],
)
async def test_refusals_keep_their_meaning(
    proxy: Proxy, upstream: Upstream, status: int, text: str, answered: int, failed: bool
) -> None:
    upstream.failures = [(status, text, {})] * 3
    session = opened(proxy)
    got, body = await ask(proxy, session)
    assert got == answered
    if "context" in text:
        assert body["error"]["code"] == "context_length_exceeded"
        assert "9 tokens, the prompt has 12" in body["error"]["message"]
    recording = proxy.close(session)
    assert (recording.failure is not None) == failed and not recording.calls


async def test_a_reply_that_cannot_be_read_is_a_failure(proxy: Proxy, upstream: Upstream) -> None:
    upstream.failures = [(200, '{"choices": []}', {})]
    session = opened(proxy)
    assert (await ask(proxy, session))[0] == 500
    assert proxy.close(session).failure is not None


async def test_a_call_that_does_not_parse_stays_in_the_text(
    proxy: Proxy, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {**CALL, "function": {"name": "shell", "arguments": '{"command": "l'}}
    monkeypatch.setitem(SCRIPT[0], "tool_calls", [broken])
    session = opened(proxy)
    status, body = await ask(proxy, session)
    assert status == 200 and body["choices"][0]["message"]["content"] == 'Let me look.\nshell({"command": "l)'
    assert [c.parse_status for c in proxy.close(session).calls] == ["malformed"]


async def test_training_is_refused(proxy: Proxy) -> None:
    with pytest.raises(CaptureError, match="big was seen to give text"):
        proxy.open("r", mode="train", sampling=Sampling())


def test_a_token_engine_needs_a_rendering() -> None:
    with pytest.raises(RenderingError, match="Rendering.load"):
        Proxy(object())  # type: ignore[arg-type]
