"""Worlds as OpenEnv services: over HTTP, over a WebSocket, and with OpenEnv's own client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import gymnasium
import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from needs import need
from openenv_client import PYTHON
from palestra.envs.env import TaskEnv
from palestra.tasks.registry import find_task
from serving import GOLD, TASK, serving

CALLS: list[dict[str, Any]] = [
    {"name": "list_tables", "arguments": {}},
    {"name": "describe", "arguments": {"table": "gate"}},
    {"text": "I believe it is the first one."},
    {"name": "query", "arguments": {"sql": "SELEC"}},
    {"name": "submit", "arguments": {"sql": GOLD}},
]


def in_process() -> list[dict[str, Any]]:
    """The same episode, played here: what each answer should say."""
    env = gymnasium.make("palestra.envs:palestra/Sql-v0").unwrapped
    assert isinstance(env, TaskEnv)
    env.reset(options={"task": find_task("sql-tiny", TASK)})
    answers = []
    for action in CALLS:
        observation, reward, terminated, truncated, info = env.step(action.get("text") or json.dumps(action))
        answers.append(
            {
                "text": observation, "reward": reward, "done": terminated or truncated, "anchor": info["anchor"],
                "state_digest": info["state_digest"], "valid_action": info["valid_action"],
            }
        )  # fmt: skip
    return answers


def flat(answer: dict[str, Any]) -> dict[str, Any]:
    seen = answer["observation"]
    kept = {name: seen[name] for name in ("text", "anchor", "state_digest", "valid_action")}
    return kept | {"reward": answer["reward"], "done": answer["done"]}


async def ask(socket: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    await socket.send(json.dumps({"type": kind, "data": data}))
    return dict(json.loads(await socket.recv()))


async def test_an_episode_over_a_websocket_is_the_episode_in_process(url: str) -> None:
    async with connect(f"{url.replace('http', 'ws')}/ws") as socket:
        first = await ask(socket, "reset", task=TASK)
        assert (
            first["type"] == "observation" and first["data"]["reward"] is None and not first["data"]["done"]
        )
        assert first["data"]["observation"]["text"] == "Which one is at the top?"
        assert [t["function"]["name"] for t in first["data"]["observation"]["tools"]][:2] == [
            "list_tables",
            "describe",
        ]
        assert [flat((await ask(socket, "step", **action))["data"]) for action in CALLS] == in_process()
        state = await ask(socket, "state")
        assert state["data"]["step_count"] == len(CALLS) and state["data"]["task_id"] == TASK
        assert "gold" not in json.dumps(state)


async def test_an_episode_over_http_is_the_episode_in_process(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        first = (await http.post("/reset", json={"task": TASK})).json()
        name = first["observation"]["episode_id"]
        answers = [(await http.post("/step", json={"episode_id": name, "action": a})).json() for a in CALLS]
        assert [flat(a) for a in answers] == in_process()
        assert (await http.get("/state", params={"episode_id": name})).json()["step_count"] == len(CALLS)
        again = await http.post("/step", json={"episode_id": name, "action": CALLS[0]})
        assert again.status_code == 409 and "is over" in again.json()["error"]
        assert (await http.post("/reset", json={"episode_id": name, "seed": 3})).status_code == 200


async def test_equal_seeds_give_equal_tasks(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        tasks = [
            (await http.post("/reset", json={"seed": s})).json()["observation"]["task_id"] for s in (1, 1, 2)
        ]
    assert tasks[0] == tasks[1] != tasks[2]


async def test_what_a_service_says_of_itself(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/health")).json() == {"status": "healthy"}
        assert (await http.get("/metadata")).json()["name"] == "palestra/Sql-v0"
        assert set((await http.get("/schema")).json()) == {"action", "observation", "state"}


async def test_connections_play_apart(url: str) -> None:
    address = f"{url.replace('http', 'ws')}/ws"
    async with connect(address) as one, connect(address) as two:
        await ask(one, "reset", task=TASK), await ask(two, "reset", task=TASK)
        assert (await ask(one, "step", **CALLS[-1]))["data"]["done"]
        assert (await ask(two, "step", **CALLS[0]))["data"]["observation"]["text"] == "gate, notes"
        assert (await ask(one, "step", **CALLS[0]))["type"] == "error"
        assert (await ask(one, "reset", task=TASK))["type"] == "observation"


# Attacks.


@pytest.mark.parametrize("path", ["/step", "/state"])
async def test_attack_an_unknown_episode_is_refused(url: str, path: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        body = {"episode_id": "0" * 32, "action": {"text": "x"}}
        reply = await (
            http.post(path, json=body) if path == "/step" else http.get(path, params={"episode_id": "0"})
        )
        assert reply.status_code == 404 and "there is no episode" in reply.json()["error"]


async def test_attack_an_oversized_request_is_refused(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        reply = await http.post("/step", content=b"x" * 2_000_000)
        assert reply.status_code == 413


async def test_attack_an_oversized_message_closes_its_own_connection_alone(url: str) -> None:
    address = f"{url.replace('http', 'ws')}/ws"
    async with connect(address) as other:
        await ask(other, "reset", task=TASK)
        async with connect(address) as socket:
            with pytest.raises(ConnectionClosed):
                await ask(socket, "step", text="x" * 2_000_000)
        assert (await ask(other, "step", **CALLS[0]))["type"] == "observation"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "INVALID_JSON"),
        ("[]", "VALIDATION_ERROR"),
        ('{"type": "step", "data": []}', "VALIDATION_ERROR"),
        ('{"type": "dance"}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": {}}', "EXECUTION_ERROR"),
        ('{"type": "step", "data": {"text": "x"}}', "EXECUTION_ERROR"),
        ('{"type": "state"}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"task": "no/such"}}', "EXECUTION_ERROR"),
        ("[" * 100_000, "INVALID_JSON"),
    ],
)
async def test_attack_odd_messages_are_answered_with_an_error(url: str, message: str, code: str) -> None:
    async with connect(f"{url.replace('http', 'ws')}/ws") as socket:
        await socket.send(message)
        assert json.loads(await socket.recv())["data"]["code"] == code
        assert (await ask(socket, "reset", task=TASK))["type"] == "observation"


async def test_attack_a_flood_of_connections_is_refused() -> None:
    async with serving(task_id=TASK, max_sessions=2) as url:
        address = f"{url.replace('http', 'ws')}/ws"
        async with connect(address), connect(address), connect(address) as third:
            assert json.loads(await third.recv())["data"]["code"] == "CAPACITY_REACHED"


async def test_a_closed_connection_leaves_room() -> None:
    async with serving(task_id=TASK, max_sessions=1) as url:
        address = f"{url.replace('http', 'ws')}/ws"
        for _ in range(3):
            async with connect(address) as socket:
                await ask(socket, "reset", task=TASK)
                await socket.send('{"type": "close"}')
                await asyncio.wait_for(socket.wait_closed(), 10)


OPENENV = """
import json, sys
from openenv.core.generic_client import GenericEnvClient
url, task, calls = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
with GenericEnvClient(base_url=url).sync() as env:
    env.reset(task=task)
    for call in calls:
        got = env.step(call)
        print(json.dumps({"observation": got.observation, "reward": got.reward, "done": got.done}))
    print(env.state()["step_count"])
"""


@pytest.mark.slow
async def test_the_openenv_client_plays_the_episode(url: str) -> None:
    need(PYTHON.exists(), "OpenEnv's client: run tests/services/openenv.sh")
    process = await asyncio.create_subprocess_exec(
        str(PYTHON), "-c", OPENENV, url, TASK, json.dumps(CALLS), stdout=-1, stderr=-1
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    *answers, count = out.decode().splitlines()
    assert [flat(json.loads(a)) for a in answers] == in_process() and count == str(len(CALLS))
