"""Marks, checks, and what models and callers send at the edges of each dialect."""

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.harness_proxy.dialects.shared import mark, strict_json, unmark


@given(st.lists(st.text("abc-_019", min_size=1), min_size=1))
def test_a_mark_comes_back(words: list[str]) -> None:
    assert unmark(mark(*words)) == words


@pytest.mark.parametrize("text", [None, 7, "", "x", "é", "CkQ=", base64.b64encode(b"other").decode()])
def test_a_foreign_signature_is_no_mark(text: Any) -> None:
    assert unmark(text) == []


@pytest.mark.parametrize(
    ("sampled", "sent"),
    [
        ('{"a":  1e3, "b": "\\u00e9"}', '{"a":  1e3, "b": "\\u00e9"}'),
        ('{"a": NaN, "b": [-Infinity]}', '{"a": "NaN", "b": ["-Infinity"]}'),
        ('{"a": "NaN"}', '{"a": "NaN"}'),
    ],
)
def test_arguments_are_json_for_every_client(sampled: str, sent: str) -> None:
    assert strict_json(sampled) == sent


NOT_A_NUMBER = '<tool_call>\n{"name": "f", "arguments": {"n": NaN, "s": "\\ud800"}}\n</tool_call>'
ROUTES: Any = {
    "/v1/messages": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/responses": {"input": "a"},
    "/v1beta/models/m:generateContent": {"contents": [{"parts": [{"text": "a"}]}]},
}


@pytest.mark.parametrize("path", ROUTES)
async def test_odd_arguments_reach_the_caller(bench: Any, path: str) -> None:
    b = await bench([NOT_A_NUMBER])
    session = b.open()
    answer = await b.raw(orjson.dumps(ROUTES[path]), {"x-goog-api-key": session.key}, path)
    assert answer.status == 200 and b"NaN" in answer.body and rb"\ud800" in answer.body
    b.close(session)


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


CALL = b'{"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": %b}]}]}'
GEMINI = "/v1beta/models/m:generateContent"
ARGS = b'{"role": "model", "parts": [{"functionCall": {"name": "f", "args": %b}}]}'


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", CALL),
        ("/v1/messages", b'{"messages": [{"role": "user", "content": %b}]}'),
        ("/v1/messages", b'{"messages": [{"role": "user", "content": "a"}], "system": %b}'),
        ("/v1/responses", b'{"input": [{"role": "user", "content": %b}]}'),
        ("/v1/responses", b'{"input": [{"type": "function_call", "name": "f", "arguments": %b}]}'),
        (GEMINI, b'{"contents": [{"parts": [{"functionResponse": {"response": %b}}]}]}'),
        (GEMINI, b'{"contents": [' + ARGS + b"]}"),
        (GEMINI, b'{"contents": %b}'),
    ],
)
async def test_what_is_nested_too_deep_is_refused(bench: Any, path: str, body: bytes) -> None:
    b = await bench([])
    session = b.open()
    answer = await b.raw(body % nested(700), {"x-api-key": session.key}, path)
    assert answer.status == 400, answer.body
    assert b.close(session).failure is None


@pytest.mark.parametrize("path", ROUTES)
async def test_a_wrong_key_is_refused_in_the_words_of_the_dialect(bench: Any, path: str) -> None:
    b = await bench([])
    for headers in ({}, {"x-api-key": "x"}, {"x-goog-api-key": ""}, {"authorization": "Bearer "}):
        answer = await b.raw(orjson.dumps(ROUTES[path]), headers, path)
        assert answer.status == 401
        assert "no open session" in answer.json["error"]["message"]


async def test_of_several_keys_the_one_that_opens_a_session_counts(bench: Any) -> None:
    b = await bench(["Hello."])
    session = b.open()
    headers = {"authorization": "Bearer other", "x-api-key": session.key}
    assert (await b.raw(orjson.dumps(ROUTES["/v1/messages"]), headers, "/v1/messages")).status == 200
    wrong = await b.raw(b"{}", headers, "/s/wrong/v1/messages")
    assert wrong.status == 401
    assert len(b.close(session).calls) == 1
