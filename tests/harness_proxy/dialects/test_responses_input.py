"""Which items of an input are one reply."""

from typing import Any

import orjson
import pytest

from palestra.harness_proxy.dialects.responses_input import grouped

R: Any = {"type": "reasoning", "summary": []}
M: Any = {"role": "assistant", "content": "x"}
U: Any = {"role": "user", "content": "x"}


def call(call_id: str) -> Any:
    return {"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"}


def output(call_id: str) -> Any:
    return {"type": "function_call_output", "call_id": call_id, "output": "x"}


A, B, C = call("call_3_0_x"), call("call_3_1_y"), call("call_4_0_z")
FOREIGN, OTHER = call("toolu_1"), call("toolu_2")


@pytest.mark.parametrize(
    ("items", "sizes"),
    [
        ([U, R, M, A, B, output("a"), output("b"), R, M], [1, 4, 1, 1, 2]),
        ([U, M, U], [1, 1, 1]),
        ([R, M, R, M, A], [2, 3]),
        ([M, M], [1, 1]),
        ([A, output("a"), B, output("b")], [2, 1, 1]),
        ([A, B, C], [2, 1]),
        ([A, output("a"), U, B], [1, 1, 1, 1]),
        ([FOREIGN, OTHER, output("1"), output("2")], [2, 1, 1]),
        ([R, FOREIGN, output("1"), OTHER, output("2")], [2, 1, 1, 1]),
        ([{"type": "additional_tools", "tools": []}, U], [1]),
    ],
)
def test_groups(items: list[Any], sizes: list[int]) -> None:
    assert [len(group) for group in grouped(items)] == sizes


async def test_what_is_left_of_a_cut_stream_is_prompt_for_the_next_sample(bench: Any) -> None:
    """codex keeps the items that were done when its stream was cut, and goes on with the next reply's."""
    said = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    b = await bench([f"One.\n{said}", f"Two.\n{said}", "Done."])
    session = b.open()

    async def ask(*items: Any) -> Any:
        answer = await b.raw(_body(items), {"authorization": f"Bearer {session.key}"}, "/v1/responses")
        return answer.json["output"]

    first = await ask(U)
    second = await ask(U, first[0])
    await ask(U, first[0], *second, output(second[1]["call_id"]))
    calls = b.close(session).calls
    assert [c.prompt_mode for c in calls] == ["render", "render", "bridge"]


def _body(items: Any) -> bytes:
    return orjson.dumps({"input": list(items)})
