"""Worlds over MCP, played by the official client."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import gymnasium
import httpx
import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client

from palestra.envs.env import TaskEnv
from palestra.tasks.registry import find_task
from serving import GOLD, TASK, serving

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}
HEADERS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def text(result: Any) -> str:
    (content,) = result.content
    return str(content.text)


async def test_an_episode_over_http_is_the_episode_in_process(url: str) -> None:
    env = gymnasium.make("palestra.envs:palestra/Sql-v0").unwrapped
    assert isinstance(env, TaskEnv)
    first, _ = env.reset(options={"task": find_task("sql-tiny", TASK)})
    calls: list[tuple[str, dict[str, Any]]] = [
        ("list_tables", {}),
        ("describe", {"table": "gate"}),
        ("describe", {}),
        ("no_such_tool", {}),
        ("query", {"sql": "SELEC"}),
        ("submit", {"sql": GOLD}),
    ]
    async with Client(f"{url}/mcp") as client:
        assert client.instructions == first
        listed = (await client.list_tools()).tools
        assert [(t.name, t.description, t.input_schema) for t in listed] == [
            (f["name"], f["description"], f["parameters"]) for f in (t["function"] for t in env.tools)
        ]
        for name, arguments in calls:
            got = await client.call_tool(name, arguments)
            observation, *_, info = env.step(json.dumps({"name": name, "arguments": arguments}))
            assert (text(got), got.is_error) == (observation, not info["valid_action"])
        after = await client.call_tool("list_tables", {})
        assert after.is_error and text(after) == "The episode is over. Nothing more can be done."


async def test_sessions_play_apart(url: str) -> None:
    async with Client(f"{url}/mcp") as one, Client(f"{url}/mcp") as two:
        await one.call_tool("submit", {"sql": GOLD})
        assert (await one.call_tool("list_tables", {})).is_error
        assert text(await two.call_tool("list_tables", {})) == "gate, notes"


async def test_an_episode_over_stdio() -> None:
    command = StdioServerParameters(
        command=sys.executable,
        args=[
            "-c",
            "from palestra.cli import main; main()",
            "env",
            "serve",
            "sql-tiny",
            "--task",
            TASK,
            "--stdio",
        ],
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    async with Client(stdio_client(command)) as client:
        assert client.instructions == "Which one is at the top?"
        assert text(await client.call_tool("list_tables", {})) == "gate, notes"
        assert text(await client.call_tool("submit", {"sql": GOLD})) == "submitted"


async def opened(http: httpx.AsyncClient, url: str) -> str:
    reply = await http.post(f"{url}/mcp", json=INITIALIZE, headers=HEADERS)
    assert reply.status_code == 200, reply.text
    return reply.headers["mcp-session-id"]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": 2,
        "method": "tools/call",
        "params": {"name": name, "arguments": arguments},
    }


async def test_attack_an_unknown_session_is_refused(url: str) -> None:
    async with httpx.AsyncClient() as http:
        reply = await http.post(
            f"{url}/mcp", json=call("list_tables"), headers=HEADERS | {"mcp-session-id": "x" * 32}
        )
        assert reply.status_code == 404


async def test_attack_a_closed_session_is_refused(url: str) -> None:
    async with httpx.AsyncClient() as http:
        session = {"mcp-session-id": await opened(http, url)}
        assert (
            await http.post(f"{url}/mcp", json=call("list_tables"), headers=HEADERS | session)
        ).status_code == 200
        assert (await http.delete(f"{url}/mcp", headers=HEADERS | session)).status_code == 200
        assert (
            await http.post(f"{url}/mcp", json=call("list_tables"), headers=HEADERS | session)
        ).status_code == 404


async def test_attack_an_oversized_message_is_refused(url: str) -> None:
    async with httpx.AsyncClient() as http:
        reply = await http.post(f"{url}/mcp", json=call("query", sql="x" * 2_000_000), headers=HEADERS)
        assert reply.status_code == 413


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call"}', b"\xff"]
)
async def test_attack_odd_bodies_are_refused_and_the_service_lives_on(url: str, body: bytes) -> None:
    async with httpx.AsyncClient() as http:
        reply = await http.post(f"{url}/mcp", content=body, headers=HEADERS)
        assert 400 <= reply.status_code < 500
        await opened(http, url)


async def test_a_sessionless_protocol_is_told_which_ones_have_sessions(url: str) -> None:
    async with httpx.AsyncClient() as http:
        headers = HEADERS | {"mcp-protocol-version": "2026-07-28"}
        reply = await http.post(f"{url}/mcp", json=call("list_tables"), headers=headers)
        assert reply.status_code == 400 and "2025-06-18" in reply.json()["error"]["data"]["supported"]


async def test_more_sessions_than_allowed_are_answered_with_an_error() -> None:
    async with (
        serving(task_id=TASK, max_sessions=1) as url,
        Client(f"{url}/mcp") as one,
        Client(f"{url}/mcp") as two,
    ):
        await one.list_tools()
        with pytest.raises(Exception, match="episodes are open|Internal"):
            await asyncio.wait_for(two.list_tools(), 10)
