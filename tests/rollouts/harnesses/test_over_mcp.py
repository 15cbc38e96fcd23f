"""Agents that act through MCP: every step is in the rollout, joined to the tool call that caused it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import gymnasium
import pytest

from needs import need
from palestra.envs.env import TaskEnv
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.rollouts.errors import NotInstalledError, PlaceError, RecipeError
from palestra.rollouts.harnesses import over_mcp
from palestra.rollouts.harnesses.over_mcp import McpHarness
from palestra.rollouts.harnesses.place import namespaces
from palestra.rollouts.harnesses.recipes import Address, HarnessRecipe, Installed, Launch, find_recipe
from palestra.rollouts.harnesses.recipes.install import Inside, Install
from palestra.rollouts.local import local
from palestra.rollouts.mcp_bridge import McpBridge
from palestra.rollouts.runner import Job, RunSpec
from palestra.rollouts.testing import puppet_task, tool_call
from palestra.tasks.registry import find_task
from palestra.tasks.task import Task

WORLDS = {
    "sql": ("sql-tiny", "sql-tiny/test/0000/highest", "palestra.envs:palestra/Sql-v0"),
    "search": ("search-hops", "search-hops/test/200/2-hop/00", "palestra.envs:palestra/Search-v0"),
}
"""Task set, task and environment."""


def roomy(tasks: str, name: str) -> Task:
    """A task with enough tokens for the long prompts of real agents."""
    task = find_task(tasks, name)
    return task.model_copy(update={"budget": task.budget.model_copy(update={"tokens": 400_000})})


def solved(env_id: str, task: Task) -> tuple[list[str], list[str]]:
    """The tool calls of a solution, as an agent makes them through MCP, and what the world says to each."""
    env = gymnasium.make(env_id).unwrapped
    assert isinstance(env, TaskEnv)
    env.reset(options={"task": task})
    actions = [json.loads(action) for action in env.solution() or ()]
    observations = [str(env.step(json.dumps(action))[0]) for action in actions]
    env.close()
    return [tool_call(f"mcp__palestra__{a['name']}", **a["arguments"]) for a in actions], observations


@pytest.fixture
def rendering(tmp_path: Path) -> Rendering:
    return Rendering.load(make_tiny_tokenizer(tmp_path / "model"))


PROGRAM = """
import asyncio, json, os, socket, sys, urllib.request as u
from mcp.client.client import Client

def ask():
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": sys.argv[1]}]}).encode()
    head = {"authorization": "Bearer " + os.environ["KEY"], "content-type": "application/json"}
    u.urlopen(u.Request(os.environ["URL"] + "/v1/chat/completions", body, head), timeout=30).read()

def reached():
    try:
        socket.create_connection(("127.0.0.1", int(os.environ["OTHER"])), timeout=5).close()
    except OSError:
        return "nobody"
    return "somebody"

async def play():
    async with Client(os.environ["MCP"]) as mcp:
        await mcp.call_tool("say", {"text": reached()})
        await mcp.call_tool("submit", {"value": 0.5})

ask()
asyncio.run(play())
"""
"""Asks the model once, says whether it could connect to another service of the machine, and submits."""


class Python:
    """An interpreter, which is there."""

    def commands(self, folder: Path) -> list[list[str]]:
        return []

    def find(self, folder: Path) -> Installed | None:
        return Installed(sys.executable, "3")

    def inside(self, folder: Path) -> Inside:
        return Inside("python3")


class Program(HarnessRecipe):
    """PROGRAM as a harness."""

    name: ClassVar[str] = "program"
    dialects = ("chat",)
    install: ClassVar[Install] = Python()
    shell: ClassVar[str] = "shell"
    other = 0
    """A port of this machine."""

    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        env = {"URL": model.root_url, "KEY": model.key, "OTHER": str(Program.other)}
        return Launch((program, "-c", PROGRAM, prompt), env)


def _tell(launch: Launch, url: str) -> Launch:
    return replace(launch, env={**launch.env, "MCP": url})


@pytest.mark.parametrize("isolated", [True, False])
async def test_a_program_without_a_network_plays_through_mcp(
    rendering: Rendering, monkeypatch: pytest.MonkeyPatch, isolated: bool
) -> None:
    if isolated:
        try:
            namespaces()
        except PlaceError as error:
            need(False, str(error))
    monkeypatch.setitem(over_mcp.CONFIGURE, "program", _tell)
    service = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    monkeypatch.setattr(Program, "other", service.sockets[0].getsockname()[1])
    harness = McpHarness(Program(), isolated=isolated)
    async with local(ScriptedEngine(rendering, ["Yes."] * 2), rendering, harness=harness) as stack:
        jobs = [Job(puppet_task(name), name) for name in ("one", "two")]
        played = await stack.runner.run(jobs, RunSpec("mcp", mode="eval", attempts=1))
    service.close()
    for got in played:
        assert got.rollout.failure is None and got.rollout.reward == 0.5
        heard = "heard nobody" if isolated else "heard somebody"
        assert [s.observation for s in got.steps] == [heard, "submitted 0.5"]


async def test_what_an_isolated_bridge_made_is_gone_when_it_is_closed() -> None:
    bridge = await McpBridge.open_unix("http://127.0.0.1:1")
    assert bridge.unix_socket is not None and bridge.unix_socket.is_socket()
    assert bridge.unix_socket.parent.stat().st_mode & 0o077 == 0
    await bridge.aclose()
    assert not bridge.unix_socket.parent.exists()


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("agent", ["claude-code", "codex"])
async def test_an_agent_plays_a_world_through_mcp(rendering: Rendering, agent: str, world: str) -> None:
    if world == "search":
        need(importlib.util.find_spec("bm25s"), "bm25s: pip install 'palestra[search]'")
    try:
        harness = McpHarness(find_recipe(agent))
    except NotInstalledError as error:
        need(False, f"{error}; run tests/services/harnesses.sh")
    tasks, name, env_id = WORLDS[world]
    task = roomy(tasks, name)
    script, observations = solved(env_id, task)
    engine = ScriptedEngine(rendering, [*script, "It is done."] * 3, context_tokens=400_000)
    async with local(engine, rendering, harness=harness) as stack:
        [got] = await stack.runner.run([Job(task, "g")], RunSpec("mcp", mode="eval"))
    assert got.rollout.failure is None
    assert got.rollout.reward == 1.0
    assert [s.observation for s in got.steps] == observations
    nodes = {n.node_id: n.message for n in got.nodes}
    calls = {c.seq: nodes[c.node_id] for c in got.calls}
    for step in got.steps:
        assert step.call is not None
        assert step.tool_call_id in {t.id for t in calls[step.call].tool_calls}


def test_a_recipe_without_mcp_is_refused() -> None:
    with pytest.raises(RecipeError, match="no MCP configuration here; these have: codex, claude-code"):
        McpHarness(find_recipe("openai-sdk"))
