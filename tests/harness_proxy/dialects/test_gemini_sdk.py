"""Gemini, driven by the real SDK over a socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import errors, types

from palestra.harness_proxy.engines.base import EngineUnavailableError, PromptTooLongError
from palestra.harness_proxy.sessions import Session

TOOLS: Any = [
    {
        "functionDeclarations": [
            {
                "name": "shell",
                "description": "Run.",
                "parameters": {"type": "OBJECT", "properties": {"command": {"type": "STRING"}}},
            }
        ]
    }
]
USER: Any = types.Content(role="user", parts=[types.Part(text="How many?")])


@asynccontextmanager
async def client(session: Session, **options: Any) -> AsyncIterator[Any]:
    http: Any = {"base_url": session.root_url, "httpx_async_client": httpx.AsyncClient()} | options
    sdk = genai.Client(api_key=session.key, http_options=http)
    try:
        yield sdk.aio.models
    finally:
        await sdk.aio.aclose()
        await http["httpx_async_client"].aclose()
        sdk.close()


def config(**fields: Any) -> Any:
    off = {"disable": True}
    chosen = {"tools": TOOLS, "system_instruction": "Be brief.", "automatic_function_calling": off}
    return chosen | {"thinking_config": {"include_thoughts": True}} | fields


def results(content: Any) -> Any:
    calls = [part.function_call for part in content.parts if part.function_call]
    return types.Content(
        role="user",
        parts=[
            types.Part(
                function_response=types.FunctionResponse(id=c.id, name=c.name, response={"output": "42"})
            )
            for c in calls
        ],
    )


async def ask(models: Any, streamed: bool, contents: Any, **fields: Any) -> Any:
    """The content of the reply."""
    options = {"model": "gemini-x", "contents": contents, "config": config(**fields)}
    if not streamed:
        return (await models.generate_content(**options)).candidates[0].content
    parts = []
    async for chunk in await models.generate_content_stream(**options):
        parts += chunk.candidates[0].content.parts
    return types.Content(role="model", parts=parts)


def kinds(content: Any) -> list[str]:
    return ["call" if p.function_call else "thought" if p.thought else "text" for p in content.parts]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("as_pi", [False, True], ids=["ids kept", "ids dropped"])
async def test_a_tool_loop_is_one_branch(
    stand: Any, session_script: Any, streamed: bool, as_pi: bool
) -> None:
    s = await stand(session_script)
    session = s.open()
    async with client(session) as models:
        history, seen = [USER], []
        for _ in session_script:
            content = await ask(models, streamed, history)
            seen.append(kinds(content))
            if as_pi:
                for part in content.parts:
                    if part.function_call:
                        part.function_call.id = None
            history += [content, results(content)]
    assert seen == [["thought", "text", "call"], ["thought", "call", "call"], ["thought", "text"]]
    s.close_unbroken(session)


async def test_thoughts_dropped_and_signatures_kept_as_gemini_cli_does(
    stand: Any, session_script: Any
) -> None:
    s = await stand(session_script)
    session = s.open()
    async with client(session) as models:
        history = [USER]
        for _ in session_script:
            content = await ask(models, True, history)
            content.parts = [part for part in content.parts if not part.thought]
            history += [content, results(content)]
    s.close_unbroken(session)


async def test_the_sdk_reads_what_was_sampled(stand: Any, session_script: Any) -> None:
    s = await stand(session_script)
    session = s.open()
    async with client(session) as models:
        reply = await models.generate_content(model="gemini-x", contents="How many?", config=config())
    call = reply.candidates[0].content.parts[2].function_call
    assert (call.name, call.args) == ("shell", {"b": "é/", "command": "ls", "n": 10000.0})
    assert reply.text == "Let me look." and reply.model_version == "gemini-x"
    assert reply.candidates[0].finish_reason == types.FinishReason.STOP
    assert reply.usage_metadata.total_token_count > reply.usage_metadata.prompt_token_count > 0
    tools = next(iter(s.close(session).tools.values()))
    assert tools[0]["function"]["parameters"]["properties"] == {"command": {"type": "string"}}


async def test_only_the_last_chunk_ends(stand: Any, session_script: Any) -> None:
    s = await stand(session_script)
    session = s.open()
    async with client(session) as models:
        stream = await models.generate_content_stream(model="m", contents=[USER], config=config())
        chunks = [chunk async for chunk in stream]
    assert [c.candidates[0].finish_reason for c in chunks] == [None, None, types.FinishReason.STOP]
    assert [c.usage_metadata is None for c in chunks] == [True, True, False]


async def test_a_stream_without_sse_is_an_array(stand: Any) -> None:
    s = await stand(["Hello."])
    session = s.open()
    body = {"contents": [{"parts": [{"text": "Hi"}]}]}
    async with httpx.AsyncClient(base_url=s.proxy.base_url) as http:
        answer = await http.post(f"/v1beta/models/m:streamGenerateContent?key={session.key}", json=body)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()[0]["candidates"][0]["content"]["parts"] == [{"text": "Hello."}]
    assert len(s.close(session).calls) == 1


async def test_statuses_are_those_that_the_sdk_acts_on(stand: Any) -> None:
    s = await stand([EngineUnavailableError("starting"), PromptTooLongError(900, 800)])
    session = s.open()
    async with client(session) as models:

        async def refused() -> tuple[int, str | None]:
            with pytest.raises(errors.APIError) as caught:
                await ask(models, False, [USER])
            return caught.value.code, caught.value.status

        assert await refused() == (503, "UNAVAILABLE")
        with pytest.raises(errors.ClientError, match=r"input token count \(900\) exceeds"):
            await ask(models, False, [USER])
        assert await refused() == (500, "INTERNAL")
        s.proxy.pause()
        assert await refused() == (429, "RESOURCE_EXHAUSTED")
        s.proxy.resume()
        image = types.Part.from_bytes(data=b"x", mime_type="image/png")
        with pytest.raises(errors.ClientError, match="reads no images"):
            await ask(models, False, [types.Content(role="user", parts=[image])])
        s.close(session)
        assert await refused() == (401, "UNAUTHENTICATED")


async def test_the_sdk_gets_over_an_outage_by_itself(stand: Any) -> None:
    s = await stand([EngineUnavailableError("starting"), "Hello."])
    session = s.open()
    async with client(session, retry_options={"attempts": 3, "initial_delay": 0.01, "jitter": 0}) as models:
        assert (await ask(models, False, [USER])).parts[-1].text == "Hello."
    assert s.close(session).failure is None


async def test_limits_are_stops(stand: Any) -> None:
    s = await stand(["Hello, this is a long reply.", "Never."])
    session = s.open(max_calls=1)
    async with client(session) as models:
        cut = await models.generate_content(model="m", contents="Hi", config={"max_output_tokens": 2})
        assert cut.candidates[0].finish_reason == types.FinishReason.MAX_TOKENS
        stopped = await ask(models, True, [USER])
    assert "budget" in stopped.parts[0].text
    recording = s.close(session)
    assert len(recording.calls) == 1 and recording.stops == ("max_calls",)


async def test_side_routes_are_answered_and_not_recorded(stand: Any) -> None:
    s = await stand(["Hello."])
    session = s.open()
    async with client(session) as models:
        counted = await models.count_tokens(model="m", contents=[USER])
        assert [m.name async for m in await models.list()] == ["models/palestra"]
        assert (await models.get(model="x")).name == "models/x"
        reply = await models.generate_content(model="m", contents=[USER])
        with pytest.raises(errors.ClientError):
            await models.embed_content(model="m", contents="x")
    assert counted.total_tokens == reply.usage_metadata.prompt_token_count
    recording = s.close(session)
    assert len(recording.calls) == 1 and recording.findings == ()


@pytest.mark.parametrize(
    "path", ["/v1beta/models/x", "/v1/models/a:b", "/v1beta1/publishers/google/models/x"]
)
async def test_any_spelling_of_the_path_and_any_way_for_the_key(stand: Any, path: str) -> None:
    s = await stand(["One.", "Two.", "Three."])
    session = s.open()
    body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}], "system_instruction": {"parts": []}}
    async with httpx.AsyncClient(base_url=s.proxy.base_url) as http:
        ways: list[Any] = [
            {"url": f"{path}:generateContent?key={session.key}"},
            {"url": f"/s/{session.key}{path}:generateContent"},
            {"url": f"{path}:generateContent", "headers": {"x-goog-api-key": session.key}},
        ]
        for way in ways:
            assert (await http.post(json=body, **way)).status_code == 200
        assert (
            await http.post(f"/s/wrong{path}:generateContent?key={session.key}", json=body)
        ).status_code == 401
    assert len(s.close(session).calls) == 3


async def test_logprobs_on_request(stand: Any) -> None:
    s = await stand(["Hello."])
    session = s.open()
    async with client(session) as models:
        reply = await models.generate_content(model="m", contents="Hi", config={"response_logprobs": True})
    chosen = reply.candidates[0].logprobs_result.chosen_candidates
    assert len(chosen) == reply.usage_metadata.candidates_token_count
