"""OpenAI Responses, driven by the real SDK over a socket."""

from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from palestra.harness_proxy.engines.base import EngineUnavailableError
from palestra.harness_proxy.sessions import Session

TOOLS: Any = [{"type": "function", "name": "shell", "description": "Run.", "parameters": {}, "strict": False}]
USER: Any = {"role": "user", "content": "How many?"}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def client(session: Session, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=session.base_url, api_key=session.key, **options)


def results(response: Any) -> list[Any]:
    calls = [i for i in response.output if i.type == "function_call"]
    return [{"type": "function_call_output", "call_id": c.call_id, "output": "42"} for c in calls]


async def ask(sdk: openai.AsyncOpenAI, streamed: bool, **options: Any) -> Any:
    if not streamed:
        return await sdk.responses.create(model="gpt-x", **options)
    async with sdk.responses.stream(model="gpt-x", **options) as stream:
        return await stream.get_final_response()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_tool_loop_is_one_branch(stand: Any, session_script: Any, streamed: bool) -> None:
    s = await stand(session_script)
    session = s.open()
    async with client(session) as sdk:
        history = [USER]
        seen = []
        for _ in session_script:
            response = await ask(sdk, streamed, instructions="Be brief.", input=history, tools=TOOLS)
            seen.append([i.type for i in response.output])
            history += [i.model_dump() for i in response.output] + results(response)
    assert seen == [
        ["reasoning", "message", "function_call"],
        ["reasoning", "function_call", "function_call"],
        ["reasoning", "message"],
    ]
    assert response.output_text == "There are 42." and response.status == "completed"
    s.close_unbroken(session)


async def test_a_reply_has_every_field_that_the_api_defines(stand: Any, session_script: Any) -> None:
    s = await stand(session_script)
    session = s.open()
    body = {"model": "gpt-x", "input": [USER], "tools": TOOLS}
    headers = {"authorization": f"Bearer {session.key}"}
    async with httpx.AsyncClient(base_url=s.proxy.base_url, headers=headers) as http:
        answer = (await http.post("/v1/responses", json=body)).json()
    response = Response.model_validate(answer, strict=False)
    call = response.output[2]
    assert (
        call.type == "function_call"
        and call.arguments == '{"b":  "\\u00e9\\/", "command": "ls", "n": 10000.0}'
    )
    assert answer["usage"]["total_tokens"] > 0 and answer["model"] == "gpt-x"


async def test_the_events_are_those_of_the_api(stand: Any, session_script: Any) -> None:
    s = await stand(session_script)
    session = s.open()
    async with client(session) as sdk:
        stream = await sdk.responses.create(model="m", input=[USER], tools=TOOLS, stream=True)
        events = [event.model_dump() async for event in stream]
    for event in events:
        EVENTS.validate_python(event)
    summary, text, call = "reasoning_summary", "output_text", "function_call_arguments"
    assert [e["type"].removeprefix("response.") for e in events] == [
        *["created", "in_progress", "output_item.added", f"{summary}_part.added", f"{summary}_text.delta"],
        *[f"{summary}_text.done", f"{summary}_part.done", "output_item.done"],
        *["output_item.added", "content_part.added", f"{text}.delta", f"{text}.done", "content_part.done"],
        *["output_item.done", "output_item.added", f"{call}.delta", f"{call}.done", "output_item.done"],
        "completed",
    ]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
    assert [i["id"] for i in done] == [i["id"] for i in events[-1]["response"]["output"]]
    assert [e["output_index"] for e in events if "output_index" in e] == [0] * 6 + [1] * 6 + [2] * 4


async def test_custom_and_namespaced_tools_are_called_in_their_own_form(stand: Any) -> None:
    said = [
        '<tool_call>\n{"name": "patch", "arguments": {"input": "*** Begin\\n+é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "agents__spawn", "arguments": {"n": 1}}\n</tool_call>',
        "Done.",
    ]
    s = await stand(said)
    session = s.open()
    spawn = {"type": "function", "name": "spawn", "parameters": {"type": "object"}}
    tools: Any = [
        {"type": "custom", "name": "patch", "description": "Freeform."},
        {"type": "namespace", "name": "agents", "description": "", "tools": [spawn]},
        {"type": "web_search"},
    ]
    async with client(session) as sdk:
        first = await ask(sdk, False, input=[USER], tools=tools)
        patch, call = first.output
        assert (patch.type, patch.name, patch.input) == ("custom_tool_call", "patch", "*** Begin\n+é")
        assert (call.name, call.namespace, call.arguments) == ("spawn", "agents", '{"n": 1}')
        outputs: Any = [
            {"type": "custom_tool_call_output", "call_id": patch.call_id, "output": "ok"},
            {"type": "function_call_output", "call_id": call.call_id, "output": "ok"},
        ]
        history = [USER, *(i.model_dump() for i in first.output), *outputs]
        await ask(sdk, True, input=history, tools=tools)
    recording = s.close_unbroken(session)
    assert any("web_search" in finding for finding in recording.findings)


async def test_additional_tools_in_the_input_are_tools(stand: Any, session_script: Any) -> None:
    s = await stand(session_script)
    session = s.open()
    item: Any = {"type": "additional_tools", "role": "developer", "tools": TOOLS}
    async with client(session) as sdk:
        first = await ask(sdk, False, input=[item, USER])
        history = [item, USER, *(i.model_dump() for i in first.output), *results(first)]
        await ask(sdk, False, input=history)
    recording = s.close_unbroken(session)
    assert [[t["function"]["name"] for t in tools] for tools in recording.tools.values()] == [["shell"]]


async def test_statuses_are_those_that_the_sdk_acts_on(stand: Any) -> None:
    s = await stand([])
    session = s.open()
    async with client(session, max_retries=0) as sdk:
        with pytest.raises(openai.InternalServerError):
            await ask(sdk, True, input="Hi")
        with pytest.raises(openai.BadRequestError, match="send the whole input"):
            await ask(sdk, False, input="Hi", previous_response_id="resp_1")
        with pytest.raises(openai.BadRequestError, match="'item_reference' are not served"):
            await ask(sdk, False, input=[{"type": "item_reference", "id": "x"}])
        s.proxy.pause()
        with pytest.raises(openai.RateLimitError):
            await ask(sdk, False, input="Hi")
        s.close(session)
        with pytest.raises(openai.AuthenticationError):
            await ask(sdk, False, input="Hi")


async def test_a_final_failure_is_not_asked_again(stand: Any) -> None:
    s = await stand(lambda prompt, session: ValueError("boom"))
    session = s.open()
    async with client(session, max_retries=5) as sdk:
        with pytest.raises(openai.InternalServerError):
            await ask(sdk, False, input="Hi")
    assert len(s.engine.calls) == 1
    assert s.close(session).failure.boundary == "proxy"


async def test_the_sdk_gets_over_an_outage_by_itself(stand: Any) -> None:
    s = await stand([EngineUnavailableError("starting"), "Hello."])
    session = s.open()
    async with client(session, max_retries=2) as sdk:
        assert (await ask(sdk, True, input="Hi")).output_text == "Hello."
    assert s.close(session).failure is None


async def test_limits_are_stops(stand: Any) -> None:
    s = await stand(["Hello, this is a long reply.", "Never."])
    session = s.open(max_calls=1)
    async with client(session) as sdk:
        cut = await ask(sdk, False, input="Hi", max_output_tokens=2)
        assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
        stream = await sdk.responses.create(model="m", input="Hi again", stream=True)
        events = [event async for event in stream]
    assert events[-1].type == "response.completed" and "budget" in events[-1].response.output_text
    recording = s.close(session)
    assert len(recording.calls) == 1 and recording.stops == ("max_calls",)


async def test_a_cut_stream_ends_as_incomplete(stand: Any) -> None:
    s = await stand(["Hello, this is a long reply."])
    session = s.open()
    async with client(session) as sdk:
        stream = await sdk.responses.create(model="m", input="Hi", max_output_tokens=2, stream=True)
        events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"


async def test_side_routes_are_answered_and_not_recorded(stand: Any) -> None:
    s = await stand(["Hello."])
    session = s.open()
    async with client(session) as sdk:
        counted = await sdk.responses.input_tokens.count(model="m", input=[USER], tools=TOOLS)
        reply = await ask(sdk, False, input=[USER], tools=TOOLS)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve("resp_1")
    assert counted.input_tokens == reply.usage.input_tokens
    recording = s.close(session)
    assert len(recording.calls) == 1 and recording.findings == ()


async def test_logprobs_on_request(stand: Any) -> None:
    s = await stand(["Hello."])
    session = s.open()
    async with client(session) as sdk:
        reply = await ask(sdk, True, input="Hi", include=["message.output_text.logprobs"])
    part = reply.output[0].content[0]
    assert len(part.logprobs) == reply.usage.output_tokens
