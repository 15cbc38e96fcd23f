"""Real harnesses inside the sandbox of a task: they repair its tree with their own tools and reach nothing else.

They do so in either backend.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import gymnasium
import pytest

import sandboxes
import swe
from harness_stand import needs_installed
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.harnesses import CommandLineHarness
from palestra.rollouts.harnesses.check import CONTEXT_TOKENS, odd
from palestra.rollouts.harnesses.recipes import HarnessRecipe, find_recipe
from palestra.rollouts.job import Job, RunSpec
from palestra.rollouts.local import local
from palestra.tasks.registry import load_tasks
from palestra.tasks.task import Task
from palestra.training.advantages import estimators
from palestra.training.decisions import decisions
from palestra.trajectories.model import Sampling, Trajectory

LOOK = "git status --short; ls"
REACH = """python3 - <<'END'
import socket
for address in [("1.1.1.1", 443), ("10.0.0.1", 80)]:
    try:
        socket.create_connection(address, 2)
        print("reached")
    except OSError:
        print("refused")
END"""


IN_DOCKER = "palestra-test/SweInDocker-v0"
gymnasium.register(IN_DOCKER, "palestra.envs.swe:SweEnv", kwargs={"tasks": "swe-tiny", "backend": "docker"})


@pytest.fixture(params=["namespace", pytest.param("docker", marks=pytest.mark.xdist_group("docker"))])
def bug(request: pytest.FixtureRequest) -> Task:
    """One of swe-tiny, with room for what harnesses say, on machines of this backend."""
    with sandboxes.backend(request.param):
        swe.machines()
    task = next(iter(load_tasks("swe-tiny", "test")))
    if request.param == "docker":
        task = task.model_copy(update={"env": IN_DOCKER})
    budget = task.budget.model_copy(update={"tokens": CONTEXT_TOKENS, "wall_s": 240.0})
    return task.model_copy(update={"budget": budget})


def repair(bug: Task) -> str:
    """The command that applies the known patch."""
    packed = base64.b64encode(bug.data["patch"].encode()).decode()
    return f"echo {packed} | base64 -d | git apply --whitespace=nowarn"


def script(recipe: HarnessRecipe, *commands: str) -> list[str]:
    """A model that runs these commands, one after the other, and ends."""
    last = recipe.last_use("Done.")
    return [*(odd(recipe.shell_use(c)) for c in commands), odd(last) if last is not None else "Done."]


async def play(
    rendering: Rendering, recipe: HarnessRecipe, bug: Task, scripts: Mapping[int, Sequence[str]]
) -> list[Trajectory]:
    needs_installed(recipe)
    replies = {f"r/g/{k}": replies for k, replies in scripts.items()}
    engine = ScriptedEngine(rendering, replies, context_tokens=CONTEXT_TOKENS)
    spec = RunSpec("r", seed=1, sampling=Sampling(max_tokens=4096), attempts=1)
    async with local(engine, rendering, harness=CommandLineHarness(recipe)) as stack:
        return await stack.runner.run([Job(bug, "g", k) for k in scripts], spec)


@pytest.mark.slow
@pytest.mark.xdist_group("harness-mini-swe-agent")
async def test_a_group_of_mini_swe_agents_gets_credit_step_by_step(rendering: Rendering, bug: Task) -> None:
    recipe = find_recipe("mini-swe-agent")
    scripts = {0: script(recipe, LOOK, repair(bug)), 1: script(recipe, LOOK, LOOK)}
    repaired, idle = await play(rendering, recipe, bug, scripts)
    assert (repaired.rollout.reward, idle.rollout.reward) == (1.0, 0.0), (repaired.rollout, idle.rollout)
    for played in (repaired, idle):
        assert [step.call for step in played.steps] == [0, 1, 2]
    found = decisions([repaired, idle])
    steps = estimators["gigpo"](found.table, gamma=0.9, step_weight=1.0)
    episodes = estimators["gigpo"](found.table, gamma=0.9, step_weight=0.0)
    credit = dict(zip(found.keys, (steps - episodes).tolist(), strict=True))
    assert credit["r/g/0", 1] > credit["r/g/0", 0] > 0 > credit["r/g/1", 1]


@pytest.mark.slow
@pytest.mark.xdist_group("harness-codex")
async def test_codex_repairs_a_package_and_reaches_nothing_else(rendering: Rendering, bug: Task) -> None:
    recipe = find_recipe("codex")
    [played] = await play(rendering, recipe, bug, {0: script(recipe, REACH, repair(bug))})
    assert played.rollout.reward == 1.0, str(played.rollout.failure)
    said = played.steps[0].observation
    assert said.count("refused") == 2 and "reached" not in said
    anchors = [step.anchor for step in played.steps]
    assert anchors[0] == anchors[1] != anchors[2]
