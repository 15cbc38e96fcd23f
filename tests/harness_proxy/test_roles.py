"""Which part a call plays: by header, by body, by words, and by the shape of the session."""

from typing import Any

import orjson
import pytest

from palestra.harness_proxy.roles import role_of_headers
from palestra.trajectories.model import Role

SYSTEM: Any = {"role": "system", "content": "You repair code."}
USER: Any = {"role": "user", "content": "Go."}
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
FEWER: Any = [{"type": "function", "function": {"name": "g", "parameters": {}}}]


@pytest.mark.parametrize(
    ("headers", "role"),
    [
        ({}, None),
        ({b"x-claude-code-session-id": b"s"}, None),
        ({b"x-claude-code-agent-id": b"a"}, "subagent"),
        ({b"x-parent-session-id": b"p"}, "subagent"),
        ({b"x-openai-subagent": b"collab_spawn"}, "subagent"),
        ({b"x-openai-subagent": b"compact"}, "compaction"),
        ({b"x-codex-turn-metadata": b'{"request_kind": "turn"}'}, None),
        ({b"x-codex-turn-metadata": b'{"request_kind":"compaction"}'}, "compaction"),
        ({b"x-interaction-type": b"conversation-subagent"}, "subagent"),
        ({b"x-interaction-type": b"conversation-compaction"}, "compaction"),
        ({b"x-interaction-type": b"conversation-agent"}, None),
    ],
)
def test_headers(headers: dict[bytes, bytes], role: Role | None) -> None:
    assert role_of_headers(headers) == role


def roles(recording: Any) -> list[Role]:
    return [c.role for c in recording.calls]


async def test_a_header_reaches_the_record(bench: Any) -> None:
    b = await bench(["One.", "Two."])
    session = b.open()
    await b.ask(session, [USER], tools=TOOLS)
    await b.ask(session, [USER], {"x-claude-code-agent-id": "a"}, tools=TOOLS, seed=1)
    assert roles(b.close(session)) == ["agent", "subagent"]


async def test_claude_code_says_it_in_its_billing_block(bench: Any) -> None:
    b = await bench(["One.", "Two."])
    session = b.open()
    for version in ("cc_version=2;", "cc_version=2; cc_is_subagent=true;"):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: {version}"},
            {"type": "text", "text": "s"},
        ]
        body = orjson.dumps({"system": system, "messages": [USER]})
        await b.raw(body, {"x-api-key": session.key}, "/v1/messages")
    recording = b.close(session)
    assert roles(recording) == ["agent", "subagent"]
    assert [n.message.content for n in recording.nodes if n.message.role == "system"] == ["s"]


@pytest.mark.parametrize(
    ("messages", "role"),
    [
        (
            [SYSTEM, {"role": "user", "content": "You are performing a CONTEXT CHECKPOINT COMPACTION."}],
            "compaction",
        ),
        ([SYSTEM, {"role": "user", "content": "Please create a detailed summary of it"}], "compaction"),
        ([{"role": "system", "content": "It summarizes internal chat history."}, USER], "compaction"),
        ([{"role": "system", "content": "You are a title generator."}, USER], "auxiliary"),
        ([{"role": "system", "content": 'Rate it.\n{"complexity_reasoning": ...}'}, USER], "auxiliary"),
        ([SYSTEM, {"role": "user", "content": "Fix: CONTEXT CHECKPOINT COMPACTION fails"}], "agent"),
        ([SYSTEM, {"role": "tool", "content": "Please create a detailed summary"}], "agent"),
    ],
)
async def test_words(bench: Any, messages: Any, role: Role) -> None:
    b = await bench(["One."])
    session = b.open()
    await b.ask(session, messages)
    assert roles(b.close(session)) == [role]


async def test_a_lone_call_without_tools_beside_calls_with_tools_is_auxiliary(bench: Any) -> None:
    b = await bench(["Title", "Look.", "Done."])
    session = b.open()
    await b.ask(session, [{"role": "system", "content": "Name this."}, USER])
    first = (await b.ask(session, [SYSTEM, USER], tools=TOOLS)).message
    await b.ask(session, [SYSTEM, USER, first, USER])
    assert roles(b.close(session)) == ["auxiliary", "agent", "agent"]


async def test_without_any_tools_all_are_agents(bench: Any) -> None:
    b = await bench(["One.", "Two."])
    session = b.open()
    await b.ask(session, [SYSTEM, USER])
    await b.ask(session, [USER])
    assert roles(b.close(session)) == ["agent", "agent"]


async def test_other_tools_and_another_prompt_are_a_subagent(bench: Any) -> None:
    b = await bench(["One."] * 4)
    session = b.open()
    helper = {"role": "system", "content": "You search."}
    await b.ask(session, [SYSTEM, USER], tools=TOOLS)
    sub = (await b.ask(session, [helper, USER], tools=FEWER)).message
    await b.ask(session, [helper, USER, sub, USER], tools=FEWER)
    await b.ask(session, [SYSTEM, USER, USER], tools=FEWER)
    assert roles(b.close(session)) == ["agent", "subagent", "subagent", "agent"]


async def test_an_agent_without_memory_is_an_agent_each_time(bench: Any) -> None:
    b = await bench(["Left."] * 3)
    session = b.open()
    for _ in range(3):
        await b.ask(session, [SYSTEM, USER], tools=TOOLS)
    assert roles(b.close(session)) == ["agent"] * 3
