"""The short way through the Qwen3 format gives what `renderers` gives, and text what `tokenizers` gives."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from renderers import Qwen3RendererConfig, create_renderer
from tokenizers import Tokenizer

from palestra.harness_proxy.qwen3_turns import Qwen3Turns
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.testing import MARKER_TOKENS, SPECIAL_TOKENS
from palestra.harness_proxy.tokenizer import LocalTokenizer
from palestra.trajectories.model import Message

USER = Message("user", "How many?")
TOOL = {
    "type": "function",
    "function": {"name": "count", "description": "é", "parameters": {"type": "object"}},
}
MARKS = [*SPECIAL_TOKENS, *MARKER_TOKENS]
PIECES = [*MARKS, "assistant\n", "<|im_start|>assistant\n", '{"name": "f", "arguments": {"a": 1}}', "\n", "é"]

texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=12), max_size=6).map("".join)
messages = st.lists(
    st.builds(Message, st.sampled_from(["user", "tool", "system", "assistant", "other"]), texts), max_size=4
)
usual_messages = st.lists(st.builds(Message, st.sampled_from(["user", "tool", "system"]), texts), max_size=4)
SETTINGS = [(False, False), (True, False), (True, True)]


@pytest.fixture(scope="session", params=SETTINGS, ids=["no-thinking", "thinking", "keep-thinking"])
def both(model_dir: Path, request: Any) -> tuple[Rendering, Rendering]:
    """The format with the short way, and by `renderers` alone."""
    thinking, keep = request.param
    tokenizer = LocalTokenizer(model_dir / "tokenizer.json")
    settings_ = Qwen3RendererConfig(enable_thinking=thinking, thinking_retention="all" if keep else None)
    reference = Rendering(create_renderer(tokenizer, settings_), tokenizer)
    return Rendering.load(model_dir, enable_thinking=thinking, keep_thinking=keep), reference


@settings(max_examples=60, deadline=None)
@given(reply=texts, ended=st.booleans(), odd_end=texts, new=messages | usual_messages)
def test_a_bridge_is_that_of_renderers(
    both: tuple[Rendering, Rendering], reply: str, ended: bool, odd_end: str, new: list[Message]
) -> None:
    fast, slow = both
    prompt = fast.render([Message("system", "s"), USER]).ids + slow.encode(odd_end)
    sampled = slow.encode(reply) + [slow.stop_token_ids[0]] * ended
    assert fast.bridge(prompt, sampled, new) == slow.bridge(prompt, sampled, new)


@settings(max_examples=60, deadline=None)
@given(system=texts, new=messages | usual_messages, tools=st.booleans())
@example(system="", new=[Message("tool", "1"), Message("tool", "2"), Message("system", "s")], tools=True)
def test_an_opening_is_that_of_renderers(
    both: tuple[Rendering, Rendering], system: str, new: list[Message], tools: bool
) -> None:
    fast, slow = both
    history, offered = [Message("system", system), *new], [TOOL] if tools else []
    assert fast.render(history, offered) == slow.render(history, offered)


@settings(max_examples=60, deadline=None)
@given(reply=texts, ended=st.booleans(), odd_end=texts)
@example(reply="</think> <tool_call>", ended=True, odd_end="")
@example(reply="  text <|endoftext|> more", ended=False, odd_end="<think>")
def test_a_reply_reads_as_renderers_reads_it(
    both: tuple[Rendering, Rendering], reply: str, ended: bool, odd_end: str
) -> None:
    fast, slow = both
    prompt = fast.render([USER]).ids + slow.encode(odd_end)
    sampled = slow.encode(reply) + [slow.stop_token_ids[0]] * ended
    assert fast.parse(sampled, prompt) == slow.parse(sampled, prompt)


@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, 450), max_size=30))
def test_ids_decode_as_tokenizers_decodes_them(model_dir: Path, ids: list[int]) -> None:
    """Random ids make bytes that are no UTF-8, and some are outside the vocabulary."""
    reference = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    expected = reference.decode(ids, skip_special_tokens=False)
    assert LocalTokenizer(model_dir / "tokenizer.json").decode(ids) == expected


@pytest.mark.parametrize("thinking", [False, True])
def test_the_usual_turns_take_the_short_way(model_dir: Path, thinking: bool) -> None:
    """Or the properties above would compare one thing with itself."""
    tokenizer = LocalTokenizer(model_dir / "tokenizer.json")
    renderer = create_renderer(tokenizer, Qwen3RendererConfig(enable_thinking=thinking))
    turns = Qwen3Turns(renderer, tokenizer)
    prompt = Rendering.load(model_dir, enable_thinking=thinking).render([USER]).ids
    reply = [*tokenizer.encode("Yes."), renderer.get_stop_token_ids()[0]]
    assert turns.plain_text(reply, prompt) == "Yes."
    assert turns.opening([Message("system", "s"), USER], b"[]") is not None
    assert turns.added(prompt, reply, [Message("tool", "1"), Message("tool", "2")]) is not None
    assert (turns.added(prompt, reply, [USER]) is not None) is not thinking
