"""A real harness plays a world: the model's shell command is a step, and the step is graded."""

from __future__ import annotations

import json

import pytest

from harness_stand import needs_installed
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.rollouts.harnesses import CommandLineHarness
from palestra.rollouts.harnesses.check import CONTEXT_TOKENS, odd
from palestra.rollouts.harnesses.recipes import find_recipe
from palestra.rollouts.job import Job, RunSpec
from palestra.rollouts.runner import Runner
from palestra.tasks.registry import find_task
from palestra.trajectories.model import Sampling
from palestra.trajectories.sample import samples


@pytest.mark.xdist_group("harness-codex")
async def test_codex_answers_a_question_about_a_database(rendering: Rendering) -> None:
    recipe, task = find_recipe("codex"), find_task("sql-tiny", "sql-tiny/test/0000/highest")
    needs_installed(recipe)
    answer = json.dumps({"sql": "SELECT badge FROM gate ORDER BY weight DESC LIMIT 1"})
    script = [
        odd(recipe.shell_use("world list_tables")),
        odd(recipe.shell_use(f"world submit '{answer}'")),
        "The badge is on the table.",
    ]
    proxy = Proxy(ScriptedEngine(rendering, script, context_tokens=CONTEXT_TOKENS), rendering)
    await proxy.start()
    runner = Runner(proxy, CommandLineHarness(recipe))
    budget = task.budget.model_copy(update={"tokens": CONTEXT_TOKENS, "wall_s": 120.0})
    spec = RunSpec(run_id="r", mode="train", seed=0, sampling=Sampling(max_tokens=512))
    job = Job(task.model_copy(update={"budget": budget}), "g", 0)
    (played,) = await runner.run([job], spec)
    await runner.aclose()
    await proxy.aclose()
    assert played.rollout.failure is None
    assert (played.rollout.reward, played.rollout.harness) == (1.0, "codex")
    assert [(s.call, s.valid_action, s.terminated) for s in played.steps] == [
        (0, True, False),
        (1, True, True),
    ]
    assert "gate" in played.steps[0].observation
    (sample,) = samples(played)
    assert sample.loss_mask.sum() == sum(int(n.sampled.sum()) for n in played.nodes)
