"""Loading a chat format, cutting prompts at message ends, bridging and parsing."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.harness_proxy.errors import RenderingError
from palestra.harness_proxy.rendering import FAMILY_OF_MODEL_TYPE, Rendering, families
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.trajectories.model import Message, ToolCall

SYSTEM, USER = Message("system", "Be careful."), Message("user", "How many?")
TOOLS: Any = ({"type": "function", "function": {"name": "f", "description": "", "parameters": {}}},)


def text(rendering: Rendering, prompt: Any) -> list[str]:
    """The prompt cut at the segments' ends, the generation prompt last."""
    ends = [0, *(s.end for s in prompt.segments), len(prompt.ids)]
    return [rendering.decode(prompt.ids[a:b]) for a, b in zip(ends, ends[1:], strict=False)]


def test_segments_end_where_messages_end(rendering: Rendering) -> None:
    pieces = text(rendering, rendering.render([SYSTEM, USER]))
    assert pieces == [
        "<|im_start|>system\nBe careful.<|im_end|>\n",
        "<|im_start|>user\nHow many?<|im_end|>\n",
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ]


def test_the_tools_belong_to_the_first_message_even_without_a_system_message(rendering: Rendering) -> None:
    pieces = text(rendering, rendering.render([USER], TOOLS))
    assert pieces[0].startswith("<|im_start|>system\n# Tools")
    assert pieces[0].endswith("<|im_start|>user\nHow many?<|im_end|>\n")


def test_bridge_and_render_cut_at_the_same_places(rendering: Rendering) -> None:
    call = ToolCall("c", "f", '{"a": 1}')
    reply = Message("assistant", "Look.", None, (call,))
    results = [Message("tool", "1", tool_call_id="c"), Message("tool", "2", tool_call_id="d")]
    prompt = rendering.render([SYSTEM, USER], TOOLS)
    sampled = rendering.encode('Look.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>')
    sampled.append(rendering.stop_token_ids[0])
    bridged = rendering.bridge(prompt.ids, sampled, results, TOOLS)
    rendered = rendering.render([SYSTEM, USER, reply, *results], TOOLS)
    assert bridged is not None
    assert bridged.ids == rendered.ids
    assert bridged.segments == rendered.segments[3:]
    assert rendered.segments[2].end == len(prompt.ids) + len(sampled)


def test_the_bridge_refuses_what_it_cannot_append(rendering: Rendering) -> None:
    ids = rendering.render([USER]).ids
    stop = rendering.stop_token_ids[0]
    assert rendering.bridge(ids, [5, stop], [Message("assistant", "x")]) is None
    assert rendering.bridge(ids, [5, stop], []) is None
    assert rendering.bridge(ids, [5, stop, 6, 7], [USER]) is None


def test_parallel_calls_parse_one_by_one(rendering: Rendering) -> None:
    good, bad = '{"name": "f", "arguments": {"x":  1.0}}', '{"name": "f", "arguments": {'
    said = "\n".join(f"<tool_call>\n{c}\n</tool_call>" for c in (good, bad, good))
    message, status = rendering.parse(rendering.encode(said), rendering.render([USER]).ids, TOOLS)
    assert status == "malformed"
    assert [(c.id, c.name, c.arguments) for c in message.tool_calls] == [("", "f", '{"x":  1.0}')] * 2
    assert message.content == f"<tool_call>\n{bad}\n</tool_call>"


def test_the_arguments_key_may_appear_in_values(rendering: Rendering) -> None:
    arguments = '{"q": "\\"arguments\\": {}", "arguments": {"a":  1}}'
    said = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    message, _ = rendering.parse(rendering.encode(said), [], TOOLS)
    assert message.tool_calls[0].arguments == arguments


def test_thinking_is_open_until_it_is_closed(model_dir: Path) -> None:
    thinking = Rendering.load(model_dir, enable_thinking=True)
    prompt = thinking.render([USER])
    assert thinking.decode(prompt.ids).endswith("assistant\n")
    message, status = thinking.parse(thinking.encode("<think>\nHm"), prompt.ids)
    assert (message.content, message.reasoning, status) == ("", "\nHm", "text")
    tool = [Message("tool", "1", tool_call_id="c")]
    cut = thinking.bridge(prompt.ids, thinking.encode("<think>\nHm"), tool)
    assert cut is not None and "Hm</think><|im_end|>\n" in thinking.decode(cut.ids)


@given(st.text(max_size=60))
def test_any_text_survives_the_tiny_tokenizer(rendering: Rendering, anything: str) -> None:
    assert rendering.decode(rendering.encode(anything)) == anything


def test_the_tiny_tokenizer_is_the_same_every_time(tmp_path: Path, model_dir: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "vocab_size": 400}')
    again = make_tiny_tokenizer(tmp_path)
    assert (again / "tokenizer.json").read_bytes() == (model_dir / "tokenizer.json").read_bytes()
    assert b"vocab_size" in (again / "config.json").read_bytes()


def test_errors_say_what_to_do(tmp_path: Path, model_dir: Path) -> None:
    with pytest.raises(RenderingError, match="family="):
        Rendering.load(tmp_path)
    with pytest.raises(RenderingError, match=r"no tokenizer\.json"):
        Rendering.load(tmp_path, family="qwen3")
    with pytest.raises(RenderingError, match="no chat format 'qwen'"):
        Rendering.load(model_dir, family="qwen")
    with pytest.raises(RenderingError, match="does not fit family 'kimi-k2'"):
        Rendering.load(model_dir, family="kimi-k2")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(RenderingError, match="'llama'.*known: qwen3"):
        Rendering.load(tmp_path)


def test_every_model_type_names_a_family_that_exists() -> None:
    assert set(FAMILY_OF_MODEL_TYPE.values()) <= set(families())


def test_a_history_without_messages_is_refused(rendering: Rendering) -> None:
    with pytest.raises(RenderingError, match="cannot be rendered"):
        rendering.render([])


def test_thoughts_can_be_kept_when_the_user_speaks_again(model_dir: Path) -> None:
    """Templates drop them there, so that by default the turn cannot be bridged."""
    for keep in (False, True):
        thinking = Rendering.load(model_dir, enable_thinking=True, keep_thinking=keep)
        ids = thinking.render([USER]).ids
        sampled = [*thinking.encode("<think>\nHm.\n</think>\n\n42."), thinking.stop_token_ids[0]]
        bridged = thinking.bridge(ids, sampled, [Message("user", "Sure?")])
        assert (bridged is not None) is keep
        assert bridged is None or bridged.ids[: len(ids) + len(sampled)] == [*ids, *sampled]
