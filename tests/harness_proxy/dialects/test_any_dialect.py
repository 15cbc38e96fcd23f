"""Any tool conversation in any dialect, however a harness writes it again, is one unbroken branch.

Each dialect gets the rewritings that its harnesses were seen to do: arguments as objects with other key order
and number spelling, text trimmed or in parts, reasoning, signatures and ids dropped, cache_control moved,
billing blocks that change, a reply in several messages, results between calls, user messages split and joined.
"""

import base64
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palestra.harness_proxy.rendering import Rendering
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Sampling

Draw = Callable[[Any], Any]

words = st.text('ab é\n"\\{}', max_size=12)
values = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.sampled_from([0.5, 1e4, -2.0]) | words
arguments = st.dictionaries(
    st.text("abc", min_size=1, max_size=3), values | st.lists(values, max_size=2), max_size=3
)


@lru_cache
def thinking(model_dir: Path) -> Rendering:
    return Rendering.load(model_dir, enable_thinking=True)


def call(draw: Draw, given: Any) -> str:
    separators = draw(st.sampled_from([(",", ":"), (" , ", ":  ")]))
    spelt = json.dumps(given, ensure_ascii=draw(st.booleans()), separators=separators)
    return f'<tool_call>\n{{"name": "f", "arguments": {spelt}}}\n</tool_call>'


@st.composite
def replies(draw: st.DrawFn) -> str:
    thought = f"<think>\n{draw(words)}\n</think>\n\n"
    calls = [call(draw, a) for a in draw(st.lists(arguments, min_size=1, max_size=3))]
    return thought + "\n".join([draw(words), *calls])


def respelt(draw: Draw, value: Any) -> Any:
    """Another way to write the same JSON value."""
    if isinstance(value, dict):
        items = [(k, respelt(draw, v)) for k, v in value.items()]
        return dict(reversed(items) if draw(st.booleans()) else items)
    if isinstance(value, list):
        return [respelt(draw, v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() and draw(st.booleans()) else value


def retyped(draw: Draw, text: str) -> Any:
    return draw(st.sampled_from([text, text.strip(), text + " \n"]))


def cut(draw: Draw, text: str) -> list[str]:
    """`text` as it is, or in two."""
    at = draw(st.integers(0, len(text)))
    return list(draw(st.sampled_from([[text], [text[:at], text[at:]]])))


class Anthropic:
    path, stop = "/v1/messages", "content"

    def body(self, draw: Draw, history: list[Any]) -> Any:
        billing = f"x-anthropic-billing-header: cch={draw(st.integers(0, 9))};"
        system: Any = [{"type": "text", "text": t} for t in draw(st.sampled_from([[billing, "s"], ["s"]]))]
        return {"system": system, "messages": history, "max_tokens": 4000, "thinking": {"type": "enabled"}}

    def reply(self, body: Any) -> tuple[Any, list[str]]:
        calls = [b["id"] for b in body["content"] if b["type"] == "tool_use"]
        return {"role": "assistant", "content": body["content"]}, calls

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def results(self, calls: list[str], text: str) -> list[Any]:
        blocks = [{"type": "tool_result", "tool_use_id": c, "content": text} for c in calls]
        return [{"role": "user", "content": blocks}, {"role": "system", "content": "Mind the time."}]

    def rewritten(self, draw: Draw, turns: list[Any]) -> list[Any]:
        return [new for turn in turns for new in self._turn(draw, turn)]

    def _turn(self, draw: Draw, turn: Any) -> list[Any]:
        if isinstance(turn["content"], str):
            return [{**turn, "content": self._text(draw, text)} for text in cut(draw, turn["content"])]
        blocks = [self._block(draw, b) for b in turn["content"]]
        if turn["role"] == "user":
            one_each = [{**turn, "content": [block]} for block in blocks]
            return list(draw(st.sampled_from([one_each, [{**turn, "content": blocks}]])))
        if draw(st.booleans()):
            blocks = [b for b in blocks if b["type"] != "thinking"]
        if draw(st.booleans()) and len(blocks) > 1:
            return [{"role": "assistant", "content": [b]} for b in blocks]
        return [{"role": "assistant", "content": blocks}]

    def _text(self, draw: Draw, text: str) -> Any:
        block = {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        return draw(st.sampled_from([text, [block]]))

    def _block(self, draw: Draw, block: Any) -> Any:
        if block["type"] == "tool_use":
            return {**block, "input": respelt(draw, block["input"])}
        if block["type"] == "text":
            return {**block, "text": retyped(draw, block["text"]), "citations": None}
        if block["type"] == "tool_result" and draw(st.booleans()):
            return {**block, "content": [{"type": "text", "text": block["content"]}], "is_error": False}
        return (
            {**block, "signature": "other"} if block["type"] == "thinking" and draw(st.booleans()) else block
        )


class Responses:
    path = "/v1/responses"

    def body(self, draw: Draw, history: list[Any]) -> Any:
        return {"instructions": "s", "input": history, "client_metadata": {"n": draw(st.integers(0, 9))}}

    def reply(self, body: Any) -> tuple[Any, list[str]]:
        return body["output"], [i["call_id"] for i in body["output"] if i["type"] == "function_call"]

    def user(self, text: str) -> Any:
        return [{"role": "user", "content": text}]

    def results(self, calls: list[str], text: str) -> list[Any]:
        return [[{"type": "function_call_output", "call_id": c, "output": text} for c in calls]]

    def rewritten(self, draw: Draw, turns: list[Any]) -> list[Any]:
        items = [new for turn in turns for item in turn for new in self._items(draw, item)]
        if draw(st.booleans()):
            items = [i for i in items if i.get("type") != "reasoning"]
        return self._interleaved(items) if draw(st.booleans()) else items

    def _interleaved(self, items: list[Any]) -> list[Any]:
        """Each result right after its call."""
        outputs = {i["call_id"]: i for i in items if i.get("type") == "function_call_output"}
        rest = [i for i in items if i.get("type") != "function_call_output"]
        pairs = [[i, outputs[i["call_id"]]] if i.get("call_id") in outputs else [i] for i in rest]
        return [item for pair in pairs for item in pair]

    def _items(self, draw: Draw, item: Any) -> list[Any]:
        if item.get("role") == "user":
            return [self._item(draw, {**item, "content": text}) for text in cut(draw, item["content"])]
        return [self._item(draw, item)]

    def _item(self, draw: Draw, item: Any) -> Any:
        kind = item.get("type")
        if kind == "function_call":
            spelt = json.dumps(respelt(draw, json.loads(item["arguments"])), ensure_ascii=draw(st.booleans()))
            return {**item, "id": None, "arguments": draw(st.sampled_from([item["arguments"], spelt]))}
        if kind == "message":
            part = {"type": "output_text", "text": retyped(draw, item["content"][0]["text"])}
            return draw(st.sampled_from([{**item, "id": "msg_x"}, {"role": "assistant", "content": [part]}]))
        if kind == "reasoning":
            return {
                **item,
                **draw(st.sampled_from([{"content": None}, {"encrypted_content": None}, {"id": None}])),
            }
        if kind is None:
            part = {"type": "input_text", "text": item["content"]}
            return draw(st.sampled_from([item, {"type": "message", **item, "id": "m", "content": [part]}]))
        return item


class Gemini:
    path = "/v1beta/models/m:generateContent"

    def body(self, draw: Draw, history: list[Any]) -> Any:
        thinking = {"thinkingConfig": {"includeThoughts": True}}
        system = draw(st.sampled_from(["systemInstruction", "system_instruction"]))
        return {system: {"parts": [{"text": "s"}]}, "contents": history, "generationConfig": thinking}

    def reply(self, body: Any) -> tuple[Any, list[str]]:
        content = body["candidates"][0]["content"]
        return content, [p["functionCall"]["id"] for p in content["parts"] if "functionCall" in p]

    def user(self, text: str) -> Any:
        return {"role": "user", "parts": [{"text": text}]}

    def results(self, calls: list[str], text: str) -> list[Any]:
        response = {"name": "f", "response": {"output": text}}
        return [{"role": "user", "parts": [{"functionResponse": {"id": c, **response}} for c in calls]}]

    def rewritten(self, draw: Draw, turns: list[Any]) -> list[Any]:
        return [new for turn in turns for new in self._turns(draw, turn)]

    def _turns(self, draw: Draw, turn: Any) -> list[Any]:
        whole = self._turn(draw, turn)
        if turn["role"] == "user" and draw(st.booleans()):
            return [{**turn, "parts": [part]} for part in whole["parts"]]
        return [whole]

    def _turn(self, draw: Draw, turn: Any) -> Any:
        parts = [part for p in turn["parts"] for part in self._part(draw, p)]
        if draw(st.booleans()):
            parts = [p for p in parts if not p.get("thought")]
        return {**turn, "parts": parts}

    def _part(self, draw: Draw, part: Any) -> list[Any]:
        if "functionCall" in part:
            call = {**part["functionCall"], "args": respelt(draw, part["functionCall"]["args"])}
            call.pop("id") if draw(st.booleans()) else None
            other = {"functionCall": call}
            if "thoughtSignature" in part and draw(st.booleans()):
                other["thoughtSignature"] = part["thoughtSignature"]
            return [other]
        if "text" in part and not part.get("thought") and draw(st.booleans()):
            return [{"text": part["text"][:3]}, {"text": part["text"][3:]}]
        return [part]


DIALECTS: Mapping[str, Any] = {"anthropic": Anthropic(), "responses": Responses(), "gemini": Gemini()}
"""Chat has tests of its own (test_reserialisation.py)."""


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_one_branch(bench: Any, model_dir: Any, name: str, data: st.DataObject) -> None:
    dialect, draw = DIALECTS[name], data.draw
    script = draw(st.lists(replies(), min_size=2, max_size=4))
    b = await bench(script, rendering=thinking(model_dir))
    session = b.open(sampling=Sampling(max_tokens=4000))
    history = [dialect.user(draw(words))]
    for _ in script:
        body = orjson.dumps(dialect.body(draw, dialect.rewritten(draw, history)))
        answer = await b.raw(body, {"authorization": f"Bearer {session.key}"}, dialect.path)
        assert answer.status == 200, answer.body
        reply, calls = dialect.reply(answer.json)
        history += [reply, *dialect.results(calls, draw(words))]
    recording = b.close(session)
    assert [c.drift for c in recording.calls] == [None] * len(script)
    assert [c.prompt_mode for c in recording.calls] == ["render"] + ["bridge"] * (len(script) - 1)
    assert list(TokenGraph(recording.nodes).leaves()) == [recording.calls[-1].node_id]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda v: (
        st.lists(v, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "role",
                    "content",
                    "text",
                    "parts",
                    "functionCall",
                    "functionResponse",
                    "name",
                    "args",
                    "id",
                ]
                + [
                    "input",
                    "arguments",
                    "call_id",
                    "summary",
                    "output",
                    "thinking",
                    "signature",
                    "tools",
                    "response",
                ]
                + [
                    "encrypted_content",
                    "thoughtSignature",
                    "tool_use_id",
                    "input_schema",
                    "system",
                    "namespace",
                ]
            ),
            v
            | st.sampled_from(
                ["user", "assistant", "model", "system", "text", "tool_use", "tool_result", "thinking"]
            )
            | st.sampled_from(
                ["message", "reasoning", "function_call", "function_call_output", "function", "custom"]
            )
            | st.just(base64.b64encode(b"palestra:\xff x").decode()),
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_no_body_breaks_the_proxy(bench: Any, name: str, data: st.DataObject) -> None:
    """Whatever JSON comes, the answer is a reply or a refusal, never a failure."""
    dialect = DIALECTS[name]
    b = await bench(lambda prompt, session: "Yes.")
    session = b.open()
    turns = data.draw(st.lists(json_values, max_size=3))
    body = dialect.body(data.draw, [dialect.user("a"), *turns] if name != "responses" else turns)
    body |= data.draw(
        st.dictionaries(st.sampled_from(["tools", "system", "thinking", "text", "include"]), json_values)
    )
    answer = await b.raw(orjson.dumps(body), {"authorization": f"Bearer {session.key}"}, dialect.path)
    assert answer.status in (200, 400), answer.body
    assert b.close(session).failure is None
