"""Every dialect: what it reads is what it wrote, errors and streams have its shape, side routes sample
nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
import pytest

from palestra.harness_proxy.dialects import DIALECTS
from palestra.harness_proxy.dialects.base import Dialect, Reply
from palestra.harness_proxy.errors import BadRequestError, EngineBusyError, UnknownKeyError
from palestra.harness_proxy.history import normal_form
from palestra.trajectories.model import Message, ToolCall

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


BODIES: Mapping[str, Callable[..., dict[str, Any]]] = {"chat": chat_body}
"""A minimal request per dialect."""


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


TURNS: Mapping[str, Callable[[Any], Any]] = {"chat": chat_turn}
JOINED: Mapping[str, Callable[[Sequence[Any]], Any]] = {"chat": chat_joined}

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
every_reply = pytest.mark.parametrize("message", REPLIES, ids=["text", "call", "all", "empty"])


def reply(message: Message, **fields: Any) -> Reply:
    return Reply("0-abc", message, "stop", 10, 3, **({"seq": 0} | fields))


@every_dialect
@every_reply
def test_a_reply_comes_back_as_it_was(dialect: Dialect, message: Message) -> None:
    request = dialect.decode(BODIES[dialect.name]())
    turn = TURNS[dialect.name](orjson.loads(dialect.encode(request, reply(message))))
    (back,) = dialect.read(turn)
    assert normal_form(back) == normal_form(message)
    assert back == message


@every_dialect
@every_reply
def test_a_stream_says_the_same(dialect: Dialect, message: Message) -> None:
    request = dialect.decode(BODIES[dialect.name](stream=True))
    assert request.stream
    lines = dialect.stream(request, reply(message)).decode().split("\n\n")
    events = [orjson.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    (back,) = dialect.read(JOINED[dialect.name](events))
    assert back == message


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
    assert not dialect.serves("/") and not dialect.serves("/v1/models")
    assert dialect.side_reply("POST", "/v1/models", "m") is None
    assert dialect.side_reply("GET", "/nowhere", "m") is None


def test_names_are_unique_and_every_dialect_is_swept() -> None:
    names = [d.name for d in DIALECTS]
    assert len(set(names)) == len(names)
    assert set(names) == set(BODIES) == set(TURNS) == set(JOINED)
