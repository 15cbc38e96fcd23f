"""Any tool conversation, however a harness writes its history again, is one unbroken branch.

The rewritings are those that real harnesses were seen to do: arguments compacted, keys reordered, non-ASCII
escaped, text trimmed, text as parts, reasoning and nulls dropped, tool-call ids replaced, unknown keys added,
user and system messages split and joined.
"""

import json
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palestra.harness_proxy.rendering import Rendering
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Sampling

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)
values = st.recursive(
    scalars, lambda v: st.lists(v, max_size=2) | st.dictionaries(st.text(max_size=4), v, max_size=2)
)
finite = st.dictionaries(st.text(max_size=6), values, max_size=3).filter(
    lambda d: "Infinity" not in json.dumps(d)
)
texts = st.text(max_size=20)


@st.composite
def replies(draw: st.DrawFn) -> str:
    """What a model says: maybe text, then maybe tool calls with oddly spelled arguments."""
    blocks = []
    for arguments in draw(st.lists(finite, max_size=2)):
        spelled = json.dumps(
            arguments,
            ensure_ascii=draw(st.booleans()),
            separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,  ", ":   ")])),
        )
        blocks.append(f'<tool_call>\n{{"name": "f", "arguments": {spelled}}}\n</tool_call>')
    return "\n".join([draw(texts), *blocks])


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def like_javascript(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: like_javascript(v) for k, v in reversed(value.items())}
    if isinstance(value, list):
        return [like_javascript(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


ARGUMENTS = [
    lambda a: a,
    lambda a: orjson.dumps(orjson.loads(a)).decode(),
    lambda a: json.dumps(json.loads(a)),
    lambda a: json.dumps(like_javascript(json.loads(a)), ensure_ascii=False),
    lambda a: json.dumps(without_nulls(json.loads(a)), sort_keys=True, indent=1),
]
CONTENT = [
    lambda c: c,
    lambda c: c or None,
    lambda c: (c or "").strip(),
    lambda c: (c or "") + " \n",
    lambda c: [{"type": "text", "text": p} for p in ((c or "")[:2], (c or "")[2:])],
    lambda c: [{"type": "text", "text": c or "", "cache_control": {"type": "ephemeral"}}],
]


def cut(draw: Any, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """User and system messages as they are, or in two."""
    new = []
    for turn in turns:
        at = draw(st.integers(0, len(turn["content"] or "")))
        if turn["role"] in ("user", "system") and draw(st.booleans()):
            new += [{**turn, "content": turn["content"][:at]}, {**turn, "content": turn["content"][at:]}]
        else:
            new.append(turn)
    return new


def rewritten(draw: Any, turn: dict[str, Any], new_ids: bool) -> dict[str, Any]:
    turn = {**turn, "content": draw(st.sampled_from(CONTENT))(turn["content"]), "annotations": None}
    if draw(st.booleans()):
        turn.pop("reasoning_content", None)
    if "tool_calls" in turn:
        turn["tool_calls"] = [
            {
                "index": i,
                "type": "function",
                "id": f"new-{call['id']}" if new_ids else call["id"],
                "function": {
                    "arguments": draw(st.sampled_from(ARGUMENTS))(call["function"]["arguments"]),
                    "name": call["function"]["name"],
                },
            }
            for i, call in enumerate(turn["tool_calls"])
        ]
    if new_ids and "tool_call_id" in turn:
        turn["tool_call_id"] = f"new-{turn['tool_call_id']}"
    return turn


@pytest.mark.parametrize("new_ids", [False, True], ids=["ids kept", "ids replaced"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_one_branch(bench: Any, new_ids: bool, data: st.DataObject) -> None:
    script = data.draw(st.lists(replies(), min_size=2, max_size=4))
    b = await bench(script)
    session = b.open(sampling=Sampling(max_tokens=4000))
    history: list[Any] = [{"role": "system", "content": "s"}, {"role": "user", "content": data.draw(texts)}]
    for _ in script:
        sent = [rewritten(data.draw, turn, new_ids) for turn in cut(data.draw, history)]
        message = (await b.ask(session, sent)).message
        history.append(message)
        results = [{"role": "tool", "tool_call_id": c["id"]} for c in message.get("tool_calls", ())]
        history += [{**r, "content": data.draw(texts)} for r in results] or [
            {"role": "user", "content": "Go on."}
        ]
    recording = b.close(session)
    assert [c.drift for c in recording.calls] == [None] * len(script)
    assert [c.prompt_mode for c in recording.calls] == ["render"] + ["bridge"] * (len(script) - 1)
    assert list(TokenGraph(recording.nodes).leaves()) == [recording.calls[-1].node_id]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_one_branch_with_reasoning(bench: Any, model_dir: Any, data: st.DataObject) -> None:
    """With thinking on, the format bridges within a tool cycle; reasoning may come back or not."""
    call = '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call>'
    thoughts = data.draw(st.lists(st.text("abc \n", max_size=10), min_size=2, max_size=4))
    b = await bench(
        [f"<think>\n{t}\n</think>\n\n{call}" for t in thoughts],
        rendering=Rendering.load(model_dir, enable_thinking=True),
    )
    session = b.open(sampling=Sampling(max_tokens=4000))
    history: list[Any] = [{"role": "user", "content": "Go."}]
    for _ in thoughts:
        message = (await b.ask(session, [rewritten(data.draw, t, False) for t in history])).message
        history += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "1"}]
    recording = b.close(session)
    assert [c.prompt_mode for c in recording.calls] == ["render"] + ["bridge"] * (len(thoughts) - 1)
    assert list(TokenGraph(recording.nodes).leaves()) == [recording.calls[-1].node_id]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_any_mixture_of_histories_stays_faithful(bench: Any, data: st.DataObject) -> None:
    """Whatever is cut, swapped or invented: each call's path is what the engine saw, each sample is kept
    once."""
    b = await bench(lambda prompt, session: data.draw(replies()))
    session = b.open(sampling=Sampling(max_tokens=data.draw(st.sampled_from([5, 4000]))))
    pool: list[Any] = [{"role": r, "content": c} for r in ("system", "user", "assistant") for c in ("a", "b")]
    history: list[Any] = [{"role": "user", "content": "a"}]
    for _ in range(data.draw(st.integers(1, 5))):
        message = (await b.ask(session, history)).message
        pool.append(message)
        pool += [
            {"role": "tool", "tool_call_id": c["id"], "content": "r"} for c in message.get("tool_calls", ())
        ]
        keep = data.draw(st.integers(0, len(history)))
        history = history[:keep] + data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=4))
    recording = b.close(session)
    assert recording.failure is None
