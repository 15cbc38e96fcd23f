"""Real agents play a SQL world through MCP: every step is in the rollout, joined to the tool call that caused it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from needs import need
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.rollouts.errors import NotInstalledError, RecipeError
from palestra.rollouts.harnesses.over_mcp import McpHarness
from palestra.rollouts.harnesses.recipes import find_recipe
from palestra.rollouts.local import Local, local
from palestra.rollouts.runner import Job, RunSpec
from palestra.rollouts.testing import tool_call
from palestra.tasks.registry import find_task

GOLD = "SELECT badge FROM gate ORDER BY weight DESC LIMIT 1"
TASK = find_task("sql-tiny", "sql-tiny/test/0000/highest").model_copy(
    update={
        "budget": find_task("sql-tiny", "sql-tiny/test/0000/highest").budget.model_copy(
            update={"tokens": 400_000}
        )
    }
)
SCRIPT = [
    tool_call("mcp__palestra__list_tables"),
    tool_call("mcp__palestra__describe", table="gate"),
    tool_call("mcp__palestra__submit", sql=GOLD),
    "It is done.",
]


@pytest.fixture
def rendering(tmp_path: Path) -> Rendering:
    return Rendering.load(make_tiny_tokenizer(tmp_path / "model"))


@pytest.fixture
async def stack(rendering: Rendering, agent: str) -> AsyncIterator[Local]:
    try:
        harness = McpHarness(find_recipe(agent))
    except NotInstalledError as error:
        need(False, f"{error}; run tests/services/harnesses.sh")
    async with local(
        ScriptedEngine(rendering, SCRIPT * 3, context_tokens=400_000), rendering, harness=harness
    ) as stack:
        yield stack


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["claude-code", "codex"])
async def test_an_agent_plays_a_sql_world_through_mcp(stack: Local, agent: str) -> None:
    [got] = await stack.runner.run([Job(TASK, "g")], RunSpec("mcp", mode="eval"))
    if os.environ.get("PALESTRA_SHOW"):
        print(got.rollout, *got.calls, *got.steps, *(n.message for n in got.nodes), sep="\n")
    assert got.rollout.failure is None
    assert got.rollout.reward == 1.0
    assert [s.observation for s in got.steps] == [
        "gate, notes",
        "gate(badge TEXT, class TEXT, weight INTEGER)",
        "submitted",
    ]
    nodes = {n.node_id: n.message for n in got.nodes}
    calls = {c.seq: nodes[c.node_id] for c in got.calls}
    for step in got.steps:
        assert step.call is not None
        assert step.tool_call_id in {t.id for t in calls[step.call].tool_calls}


def test_a_recipe_without_mcp_is_refused() -> None:
    with pytest.raises(RecipeError, match="no MCP configuration here; these have: codex, claude-code"):
        McpHarness(find_recipe("openai-sdk"))
