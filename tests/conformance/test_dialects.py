"""Every dialect: what it reads is what it wrote, errors and streams have its shape, side routes sample
nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import pytest

from palestra.harness_proxy.dialects import DIALECTS
from palestra.harness_proxy.dialects.base import Dialect, Reply
from palestra.harness_proxy.errors import BadRequestError, EngineBusyError, UnknownKeyError
from palestra.trajectories.model import Message, ToolCall
from palestra.trajectories.normal import normal_form

TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
]
REPLIES = [
    Message("assistant", "Hello."),
    Message("assistant", "", None, (ToolCall("call_0_0_a", "f", '{"x":  1}'),)),
    Message(
        "assistant", "Look.", "Hm.", (ToolCall("c1", "f", "{}"), ToolCall("c2", "f", '{"é": "\\u00e9"}'))
    ),
    Message("assistant", ""),
]


def chat_body(**extra: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, **extra}


def responses_body(**extra: Any) -> dict[str, Any]:
    tools = [{"type": "function", **TOOLS[0]["function"]}]  # type: ignore[dict-item]
    return {"model": "m", "input": "Hi", "tools": tools, **extra}


def anthropic_body(**extra: Any) -> dict[str, Any]:
    tools = [{"name": "f", "description": "d", "input_schema": {"type": "object"}}]
    message = {"role": "user", "content": "Hi"}
    thinking = {"type": "adaptive"}
    return {"messages": [message], "max_tokens": 9, "tools": tools, "thinking": thinking, **extra}


def gemini_body(stream: bool = False, **extra: Any) -> dict[str, Any]:
    declaration = {"name": "f", "description": "d", "parameters": {"type": "OBJECT"}}
    config = {"thinkingConfig": {"includeThoughts": True}}
    contents = [{"role": "user", "parts": [{"text": "Hi"}]}]
    tools = [{"functionDeclarations": [declaration]}]
    return {"contents": contents, "tools": tools, "generationConfig": config, **extra}


BODIES: Mapping[str, Callable[..., dict[str, Any]]] = {
    "chat": chat_body,
    "responses": responses_body,
    "anthropic": anthropic_body,
    "gemini": gemini_body,
}
"""A minimal request per dialect."""


def target(dialect: Dialect, stream: bool = False) -> str:
    """The URL that the request goes to, where it matters."""
    if dialect.name != "gemini":
        return ""
    return f"/v1beta/models/m:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}"


def chat_turn(body: Any) -> Any:
    return body["choices"][0]["message"]


def chat_joined(events: Sequence[Any]) -> Any:
    """The message that a client puts together from a stream."""
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            if "reasoning_content" in delta:
                message["reasoning_content"] = delta["reasoning_content"]
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    message["tool_calls"].append({"id": call["id"], "function": dict(call["function"])})
                else:
                    opened = message["tool_calls"][call["index"]]["function"]
                    opened["arguments"] += call["function"]["arguments"]
    return message


def responses_joined(events: Sequence[Any]) -> Any:
    items: list[Any] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            items.append(dict(event["item"]))
        elif kind == "response.reasoning_summary_text.delta":
            items[-1]["summary"] = [{"type": "summary_text", "text": event["delta"]}]
        elif kind == "response.output_text.delta":
            items[-1]["content"] = [{"type": "output_text", "text": event["delta"]}]
        elif kind == "response.function_call_arguments.delta":
            items[-1]["arguments"] += event["delta"]
    return items


def anthropic_joined(events: Sequence[Any]) -> Any:
    blocks: list[Any] = []
    written: list[str] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            written.append("")
        elif event["type"] == "content_block_delta":
            (key,) = set(event["delta"]) - {"type"}
            if key == "partial_json":
                written[-1] += event["delta"][key]
                blocks[-1]["input"] = orjson.loads(written[-1])
            else:
                blocks[-1][key] += event["delta"][key]
    return {"role": "assistant", "content": blocks}


def gemini_joined(events: Sequence[Any]) -> Any:
    parts = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
    return {"role": "model", "parts": parts}


TURNS: Mapping[str, Callable[[Any], Any]] = {
    "chat": chat_turn,
    "responses": lambda body: body["output"],
    "anthropic": lambda body: {"role": body["role"], "content": body["content"]},
    "gemini": lambda body: body["candidates"][0]["content"],
}
JOINED: Mapping[str, Callable[[Sequence[Any]], Any]] = {
    "chat": chat_joined,
    "responses": responses_joined,
    "anthropic": anthropic_joined,
    "gemini": gemini_joined,
}
EXACT_ARGUMENTS = ("chat", "responses")
"""Dialects that carry the arguments of a tool call as text."""

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
every_reply = pytest.mark.parametrize("message", REPLIES, ids=["text", "call", "all", "empty"])


def reply(message: Message, **fields: Any) -> Reply:
    return Reply("0-abc", message, "stop", 10, 3, **({"seq": 0} | fields))


def same(dialect: Dialect, back: Message, message: Message) -> bool:
    """Equal, but for the spelling of arguments where the dialect has objects."""
    if dialect.name in EXACT_ARGUMENTS:
        return back == message
    ids = [[c.id for c in m.tool_calls] for m in (back, message)]
    return (
        normal_form(back) == normal_form(message) and back.reasoning == message.reasoning and ids[0] == ids[1]
    )


@every_dialect
@every_reply
def test_a_reply_comes_back_as_it_was(dialect: Dialect, message: Message) -> None:
    request = dialect.decode(BODIES[dialect.name](), target(dialect))
    turn = TURNS[dialect.name](orjson.loads(dialect.encode(request, reply(message))))
    (back,) = dialect.read(turn)
    assert same(dialect, back, message)


@every_dialect
@every_reply
def test_a_stream_says_the_same(dialect: Dialect, message: Message) -> None:
    request = dialect.decode(BODIES[dialect.name](stream=True), target(dialect, stream=True))
    assert request.stream
    lines = dialect.stream(request, reply(message)).decode().splitlines()
    events = [orjson.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    (back,) = dialect.read(JOINED[dialect.name](events))
    assert same(dialect, back, message)


@every_dialect
def test_a_reply_id_comes_back(dialect: Dialect) -> None:
    """Chat has no place for one."""
    request = dialect.decode(BODIES[dialect.name](), target(dialect))
    turn = TURNS[dialect.name](orjson.loads(dialect.encode(request, reply(REPLIES[2]))))
    assert dialect.reply_id(turn) == (None if dialect.name == "chat" else "0-abc")


@every_dialect
def test_tools_are_canonical(dialect: Dialect) -> None:
    assert list(dialect.decode(BODIES[dialect.name]()).tools) == TOOLS


@every_dialect
def test_unknown_keys_are_accepted(dialect: Dialect) -> None:
    assert dialect.decode(BODIES[dialect.name](unheard_of={"x": [1]})).turns


@every_dialect
@pytest.mark.parametrize("body", [None, [], "x", 7, {}])
def test_what_is_no_request_is_refused(dialect: Dialect, body: Any) -> None:
    with pytest.raises(BadRequestError):
        dialect.decode(body)


@every_dialect
@pytest.mark.parametrize("error", [BadRequestError("x é"), UnknownKeyError("y"), EngineBusyError("z", 1.0)])
def test_errors_are_json_with_the_message(dialect: Dialect, error: Any) -> None:
    assert str(error) in str(orjson.loads(dialect.error(error)))


@every_dialect
def test_a_post_is_a_call_and_a_probe_is_not(dialect: Dialect) -> None:
    for path in ("/", "/v1/models", "/v1beta/models", "/v1/models/m"):
        assert not dialect.serves(path) and not dialect.counts(path)
    assert dialect.side_reply("POST", "/v1/models", "m") is None
    assert dialect.side_reply("GET", "/nowhere", "m") is None


def test_names_are_unique_and_every_dialect_is_swept() -> None:
    names = [d.name for d in DIALECTS]
    assert len(set(names)) == len(names)
    assert set(names) == set(BODIES) == set(TURNS) == set(JOINED)
