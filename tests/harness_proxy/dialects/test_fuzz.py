"""Real bodies, broken in a few places: a dialect reads them or refuses them, and nothing else comes out."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.harness_proxy.dialects import DIALECTS
from palestra.harness_proxy.dialects.base import Dialect, Reply
from palestra.harness_proxy.errors import RequestError
from palestra.trajectories.model import Message, ToolCall

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
CHAT = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": [{"type": "text", "text": "Be careful."}]},
        {"role": "user", "content": "Hi", "name": "u"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "ok"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 9,
    "logprobs": True,
    "return_token_ids": True,
}
RESPONSES = {
    "model": "m",
    "instructions": "Be careful.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "id": "m", "content": [{"type": "output_text", "text": "Yes."}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "n"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
        {"type": "custom_tool_call", "call_id": "k", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "k", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "h"}]},
    ],
    "tools": [
        {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA},
        {"type": "custom", "name": "g"},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]},
        {"type": "web_search"},
    ],
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "text"}},
    "stream": True,
    "max_output_tokens": 9,
}  # fmt: skip
ANTHROPIC = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be careful.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "cGFsZXN0cmE6MC1h"},
                {"type": "text", "text": "Yes."},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "ok"}]},
                {"type": "text", "text": "And?"},
            ],
        },
        {"role": "system", "content": "It is late."},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}, {"type": "web_search", "name": "w"}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "enabled", "budget_tokens": 5},
    "output_config": {"format": None},
    "metadata": {"user_id": "u"},
    "stream": True,
}
GEMINI = {
    "systemInstruction": {"role": "user", "parts": [{"text": "Be careful."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Hm.", "thought": True},
                {
                    "functionCall": {"id": "c", "name": "f", "args": {"command": "ls"}},
                    "thoughtSignature": "eA==",
                },
            ],
        },
        {
            "role": "user",
            "parts": [{"functionResponse": {"id": "c", "name": "f", "response": {"output": "ok"}}}],
        },
    ],
    "tools": [
        {"functionDeclarations": [{"name": "f", "description": "d", "parameters": {"type": "OBJECT"}}]},
        {"function_declarations": [{"name": "g", "parametersJsonSchema": SCHEMA}]},
        {"googleSearch": {}},
    ],
    "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    "generationConfig": {
        "maxOutputTokens": 9,
        "thinkingConfig": {"includeThoughts": True},
        "candidateCount": 1,
    },
}
BODIES: Mapping[str, Any] = {
    "chat": CHAT,
    "responses": RESPONSES,
    "anthropic": ANTHROPIC,
    "gemini": GEMINI,
}
TARGETS = {"gemini": "/v1beta/models/m:streamGenerateContent?alt=sse"}
REPLY = Reply(
    "0-abc",
    Message("assistant", "Look.", "Hm.", (ToolCall("c1", "f", "{}"), ToolCall("c2", "g", '{"input": "x"}'))),
    "stop",
    10,
    3,
    0,
    logprobs=(("Look", -0.5), (".", -0.25)),
    prompt_ids=(1, 2),
    token_ids=(3, 4),
)

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.sampled_from(
        ["", "text", "user", "assistant", "tool", "function", "custom", "namespace", "/", "é\u0000"]
    )
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything below `node`."""
    keys = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield (*path, key)
        yield from places(node[key], (*path, key))


@st.composite
def broken(draw: st.DrawFn, body: Any) -> Any:
    """`body` with one to four changes: a part replaced, removed, doubled, wrapped, or a part of any body."""
    body = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 4))):
        all_places = list(places(body))
        if not all_places:
            break
        *way, last = draw(st.sampled_from(all_places))
        parent = body
        for key in way:
            parent = parent[key]
        change = draw(st.sampled_from(["replace", "remove", "double", "wrap", "foreign"]))
        if change == "replace":
            parent[last] = draw(values)
        elif change == "remove":
            del parent[last]
        elif change == "double" and isinstance(parent, list):
            parent.insert(last, copy.deepcopy(parent[last]))
        elif change == "wrap":
            parent[last] = draw(st.sampled_from([[parent[last]], {"x": parent[last]}, str(parent[last])]))
        else:
            other = BODIES[draw(st.sampled_from(sorted(BODIES)))]
            parent[last] = copy.deepcopy(draw(st.sampled_from(list(other.values()))))
    return body


def check(dialect: Dialect, body: Any) -> None:
    """Read it as the proxy does, and answer it. Anything but a RequestError fails."""
    parsed = orjson.loads(orjson.dumps(body))
    try:
        request = dialect.decode(parsed, TARGETS.get(dialect.name, ""))
        for turn in request.turns:
            messages = dialect.read(turn)
            assert all(isinstance(m.content, str) for m in messages)
            dialect.reply_id(turn)
    except RequestError as error:
        assert 400 <= dialect.status(error) < 500 and orjson.loads(dialect.error(error))
        return
    orjson.dumps(request.tools)
    orjson.loads(dialect.encode(request, REPLY))
    assert dialect.stream(request, REPLY).count(b"data: ") >= 1


@every_dialect
def test_the_whole_body_is_read(dialect: Dialect) -> None:
    request = dialect.decode(copy.deepcopy(BODIES[dialect.name]), TARGETS.get(dialect.name, ""))
    assert [m for turn in request.turns for m in dialect.read(turn)] and request.tools
    check(dialect, BODIES[dialect.name])


@every_dialect
@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_a_broken_body_is_read_or_refused(dialect: Dialect, data: st.DataObject) -> None:
    check(dialect, data.draw(broken(BODIES[dialect.name])))


@every_dialect
@settings(max_examples=50, deadline=None)
@given(body=values)
def test_any_json_is_read_or_refused(dialect: Dialect, body: Any) -> None:
    check(dialect, body)
