"""Every dialect counts cached and reasoning tokens where its API does, and hands out token ids when asked."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from anthropic.types import Message as AnthropicMessage
from google.genai.types import GenerateContentResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from palestra.harness_proxy.dialects import DIALECTS
from palestra.harness_proxy.dialects.base import Dialect, Reply
from palestra.trajectories.model import Message

REPLY = Reply(
    "0-abc",
    Message("assistant", "Yes.", "Hm."),
    "stop",
    prompt_tokens=100,
    completion_tokens=20,
    seq=0,
    prompt_ids=(1, 2),
    token_ids=(3,),
    cached_tokens=60,
    reasoning_tokens=8,
)
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"input": "Hi"},
    "anthropic": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9},
    "gemini": {"contents": [{"parts": [{"text": "Hi"}]}]},
}
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)


def encoded(dialect: Dialect, **extra: Any) -> bytes:
    return dialect.encode(dialect.decode(BODIES[dialect.name] | extra), REPLY)


def by_name(name: str) -> Dialect:
    return next(d for d in DIALECTS if d.name == name)


def test_chat() -> None:
    usage = ChatCompletion.model_validate_json(encoded(by_name("chat"))).usage
    assert usage is not None and usage.prompt_tokens_details and usage.completion_tokens_details
    assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (100, 60)
    assert (usage.completion_tokens, usage.completion_tokens_details.reasoning_tokens) == (20, 8)


def test_responses() -> None:
    usage = Response.model_validate_json(encoded(by_name("responses"))).usage
    assert usage is not None
    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (100, 60)
    assert (usage.output_tokens, usage.output_tokens_details.reasoning_tokens) == (20, 8)


def test_anthropic_counts_cached_tokens_apart() -> None:
    usage = AnthropicMessage.model_validate_json(encoded(by_name("anthropic"))).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (40, 60, 20)
    assert usage.output_tokens_details is not None and usage.output_tokens_details.thinking_tokens == 8


def test_gemini_counts_thoughts_apart() -> None:
    usage = GenerateContentResponse.model_validate_json(encoded(by_name("gemini"))).usage_metadata
    assert usage is not None
    assert (usage.prompt_token_count, usage.cached_content_token_count) == (100, 60)
    assert (usage.candidates_token_count, usage.thoughts_token_count) == (12, 8)
    assert usage.total_token_count == 120


@every_dialect
def test_token_ids_come_when_asked_for(dialect: Dialect) -> None:
    body = orjson.loads(encoded(dialect, return_token_ids=True))
    assert body["prompt_token_ids"] == [1, 2]
    assert "token_ids" in str(body) and [3] in (
        body.get("token_ids"),
        body.get("choices", [{}])[0].get("token_ids"),
    )
    assert "token_ids" not in str(orjson.loads(encoded(dialect)))


@every_dialect
def test_a_stream_has_them_too(dialect: Dialect) -> None:
    target = "/v1beta/models/m:streamGenerateContent?alt=sse" if dialect.name == "gemini" else ""
    request = dialect.decode(BODIES[dialect.name] | {"return_token_ids": True, "stream": True}, target)
    stream = dialect.stream(request, REPLY)
    assert b'"prompt_token_ids":[1,2]' in stream and b'"token_ids":[3]' in stream
