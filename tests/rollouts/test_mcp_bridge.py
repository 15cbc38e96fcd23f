"""A harness that acts through MCP leaves the same record as one that acts by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest
from mcp.client.client import Client

from palestra.rollouts.harnesses.base import Endpoint
from palestra.rollouts.harnesses.chat_client import ChatClient
from palestra.rollouts.join import joined
from palestra.rollouts.local import Local
from palestra.rollouts.mcp_bridge import OVER, McpBridge
from palestra.rollouts.runner import Job, RunSpec
from palestra.rollouts.testing import puppet_task, tool_call
from palestra.rollouts.world import World
from palestra.trajectories.model import EnvStep

Stage = Callable[..., Awaitable[Local]]
PREFIX = "mcp__palestra__"
REPLIES = [
    tool_call(f"{PREFIX}say", text="a"),
    tool_call(f"{PREFIX}say", text="a"),
    tool_call(f"{PREFIX}submit"),
]


class McpAgent:
    """Does what a command-line agent does: renames the tools of an MCP server, and calls them through it."""

    name, version = "mcp-agent", "1"

    def __init__(self, mode: str = "auto", meta: bool = False) -> None:
        self._mode, self._meta = mode, meta
        self._client = ChatClient()
        self._bridge: McpBridge | None = None
        self._opening = asyncio.Lock()
        self.after = ""

    async def run(self, world: World, endpoint: Endpoint) -> None:
        async with self._opening:
            self._bridge = self._bridge or await McpBridge.open()
        async with self._bridge.serving(world) as url, Client(url, mode=self._mode) as mcp:
            tools = [_renamed(t) for t in world.tools]
            messages: list[dict[str, Any]] = [{"role": "user", "content": mcp.instructions}]
            while not world.over:
                reply = await self._client.chat(endpoint, messages, tools)
                messages.append(dict(reply.message))
                for call in reply.message["tool_calls"]:
                    name = call["function"]["name"].removeprefix(PREFIX)
                    meta: Any = {"claudecode/toolUseId": call["id"]} if self._meta else None
                    got = await mcp.call_tool(name, orjson.loads(call["function"]["arguments"]), meta=meta)
                    content: Any = got.content[0]
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": content.text})
            self.after = str((await mcp.call_tool("say", {"text": "late"})).content[0].text)  # type: ignore[union-attr]

    async def aclose(self) -> None:
        await self._client.aclose()
        if self._bridge is not None:
            await self._bridge.aclose()


def _renamed(definition: dict[str, Any]) -> dict[str, Any]:
    function = definition["function"]
    return definition | {"function": function | {"name": PREFIX + function["name"]}}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("meta", [False, True])
async def test_every_step_is_joined_to_the_tool_call_that_caused_it(
    stage: Stage, mode: str, meta: bool
) -> None:
    agent = McpAgent(mode, meta)
    stack = await stage(REPLIES, harness=agent)
    [got] = await stack.runner.run([Job(puppet_task("t"), "g")], RunSpec("run"))
    assert got.rollout.reward == 1.0, got.rollout.failure
    assert [s.observation for s in got.steps] == ["heard a", "heard a", "submitted 1"]
    assert [s.call for s in got.steps] == [0, 1, 2]
    nodes = {n.node_id: n for n in got.nodes}
    sampled = [nodes[c.node_id].message.tool_calls[0].id for c in got.calls]
    assert [s.tool_call_id for s in got.steps] == sampled and len(set(sampled)) == 3
    assert agent.after == OVER


async def test_two_worlds_are_played_apart(stage: Stage) -> None:
    stack = await stage(REPLIES * 2, harness=McpAgent())
    got = await stack.runner.run([Job(puppet_task(name), name) for name in ("one", "two")], RunSpec("run"))
    assert all(len({s.call for s in t.steps}) == len(t.steps) for t in got)


@pytest.fixture
async def bridge() -> AsyncIterator[McpBridge]:
    opened = await McpBridge.open()
    yield opened
    await opened.aclose()


@pytest.mark.parametrize("path", ["/", "/mcp", "/guess/mcp", "//mcp"])
async def test_attack_a_guessed_url_is_refused(bridge: McpBridge, path: str) -> None:
    async with httpx.AsyncClient() as http:
        reply = await http.post(
            f"{bridge._listener.url}{path}", json={"jsonrpc": "2.0", "id": 1, "method": "ping"}
        )
        assert reply.status_code == 404


def step(action: dict[str, Any], **fields: Any) -> EnvStep:
    made = EnvStep(0, None, None, orjson.dumps(action).decode(), "", 0.0, False, False, "", "")
    return replace(made, **fields)


async def recorded(stage: Stage) -> Any:
    stack = await stage(REPLIES, harness=McpAgent())
    [got] = await stack.runner.run([Job(puppet_task("t"), "g")], RunSpec("run"))
    return got


async def test_a_step_that_no_reply_asked_for_stays_alone(stage: Stage) -> None:
    got = await recorded(stage)
    other = step({"name": "say", "arguments": {"text": "of my own"}})
    almost = step({"name": "ay", "arguments": {"text": "a"}})
    assert [s.call for s in joined([other, almost], got.calls, got.nodes)] == [None, None]


async def test_a_tool_call_causes_one_step_at_most(stage: Stage) -> None:
    got = await recorded(stage)
    said = step({"name": "say", "arguments": {"text": "a"}})
    assert [s.call for s in joined([said, said, said], got.calls, got.nodes)] == [0, 1, None]
    first = replace(said, call=0, tool_call_id=got.steps[0].tool_call_id)
    assert [s.call for s in joined([first, said], got.calls, got.nodes)] == [0, 1]


async def test_a_reply_that_reached_nobody_caused_nothing(stage: Stage) -> None:
    got = await recorded(stage)
    calls = [replace(c, delivered=c.seq != 0) for c in got.calls]
    assert joined([step({"name": "say", "arguments": {"text": "a"}})], calls, got.nodes)[0].call == 1
