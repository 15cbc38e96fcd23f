"""The harnesses of our own, against the real proxy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import cast

import pytest

from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.harnesses import Demonstrator, ScriptedHarness, ToolLoop
from palestra.rollouts.harnesses.tool_loop import seen
from palestra.rollouts.local import Local
from palestra.rollouts.pool import HostedEnv
from palestra.rollouts.runner import Job, RunSpec, group_jobs
from palestra.rollouts.testing import puppet_task, tool_call
from palestra.rollouts.world import World
from palestra.tasks.registry import load_tasks
from palestra.trajectories.model import Message
from palestra.trajectories.sample import samples

Stage = Callable[..., Awaitable[Local]]
SPEC = RunSpec("run")


class TestToolLoop:
    async def test_the_model_sees_the_tools_and_what_came_of_its_calls(self, stage: Stage) -> None:
        stack = await stage()
        [got] = await stack.runner.run([Job(puppet_task("t"), "g")], SPEC)
        assert isinstance(stack.engine, ScriptedEngine)
        assert stack.proxy.rendering is not None
        prompts = [stack.proxy.rendering.decode(c.prompt_ids) for c in stack.engine.calls]
        assert "Do t." in prompts[0] and '"name": "submit"' in prompts[0]
        assert "heard a" in prompts[1]
        assert stack.engine.calls[1].prompt_ids[: len(stack.engine.calls[0].prompt_ids)] == (
            stack.engine.calls[0].prompt_ids
        )
        assert [c.prompt_mode for c in got.calls] == ["render", "bridge"]
        assert len(samples(got)) == 1

    def test_an_image_goes_along_with_its_observation(self) -> None:
        world = World(cast(HostedEnv, None), puppet_task("t"), 0)
        world.observation = "a page"
        assert seen(world) == "a page"
        world.image = b"\x89PNG"
        assert seen(world) == [
            {"type": "text", "text": "a page"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        ]

    async def test_a_system_prompt(self, stage: Stage) -> None:
        stack = await stage(harness=ToolLoop(system="Be brief."))
        [got] = await stack.runner.run([Job(puppet_task("t"), "g")], SPEC)
        assert got.nodes[0].message == Message("system", "Be brief.")

    async def test_an_empty_system_prompt_is_none(self, stage: Stage) -> None:
        stack = await stage(harness=ToolLoop(system=""))
        [got] = await stack.runner.run([Job(puppet_task("t"), "g")], SPEC)
        assert got.nodes[0].message.role == "user"

    async def test_one_loop_serves_many_runs(self, stage: Stage) -> None:
        stack = await stage()
        for run_id in ("a", "b"):
            got = await stack.runner.run(group_jobs([puppet_task("t")], 8), RunSpec(run_id))
            assert [t.rollout.reward for t in got] == [1.0] * 8
            await stack.runner.aclose()


class TestScriptedHarness:
    async def test_a_generator_sees_what_came_of_its_actions(self, stage: Stage) -> None:
        seen: list[str] = []

        def script(world: World) -> Iterator[str]:
            for word in ("a", "b", "c"):
                yield f'{{"name": "say", "arguments": {{"text": "{word}"}}}}'
                seen.append(world.observation)

        stack = await stage(harness=ScriptedHarness(script))
        [got] = await stack.runner.run([Job(puppet_task("t", turns=2), "g")], SPEC)
        assert seen == ["heard a"]
        assert [s.observation for s in got.steps] == ["heard a", "heard b"]
        assert got.rollout.truncated
        assert all(s.call is None and s.tool_call_id is None for s in got.steps)

    async def test_a_script_that_breaks(self, stage: Stage) -> None:
        def script(world: World) -> Iterator[str]:
            yield "hello"
            raise LookupError("lost the page")

        [got] = await (await stage(harness=ScriptedHarness(script))).runner.run(
            [Job(puppet_task("t"), "g")], SPEC
        )
        assert got.rollout.failure is not None
        assert got.rollout.failure.boundary == "harness"
        assert len(got.steps) == 1

    async def test_a_set_of_real_tasks(self, stage: Stage) -> None:
        def gold(world: World) -> list[str]:
            sql = world.task.data["gold_sql"].replace('"', '\\"')
            return [f'{{"name": "submit", "arguments": {{"sql": "{sql}"}}}}']

        tasks = load_tasks("sql-tiny", "dev")[:12]
        got = await (await stage(harness=ScriptedHarness(gold))).runner.run(group_jobs(tasks, 1), SPEC)
        assert [t.rollout.reward for t in got] == [1.0] * 12


class TestDemonstrator:
    async def test_demonstrations_are_recorded_as_a_policys_words(
        self, stage: Stage, rendering: Rendering
    ) -> None:
        def script(world: World) -> Iterator[str]:
            yield tool_call("say", text=world.task.id)
            yield tool_call("submit") if world.observation == "heard t" else "lost"

        demonstrator = Demonstrator(script)
        stack = await stage(ScriptedEngine(rendering, demonstrator.reply), harness=demonstrator)
        got = await stack.runner.run(group_jobs([puppet_task("t")], 6), SPEC)
        for trajectory in got:
            assert trajectory.rollout.reward == 1.0
            assert trajectory.rollout.harness == "demonstrator"
            [sample] = samples(trajectory)
            said = rendering.decode(sample.ids[sample.loss_mask].tolist())
            assert said == tool_call("say", text="t") + "<|im_end|>" + tool_call("submit") + "<|im_end|>"
        assert not demonstrator._playing

    @pytest.mark.parametrize(
        ("breaks", "says"),
        [(False, "the demonstration ended before"), (True, "the demonstration broke: KeyError: 'plan'")],
    )
    async def test_a_script_that_ends_early_or_breaks(
        self, stage: Stage, rendering: Rendering, breaks: bool, says: str
    ) -> None:
        def script(world: World) -> Iterator[str]:
            yield tool_call("say")
            if breaks:
                raise KeyError("plan")

        demonstrator = Demonstrator(script)
        stack = await stage(ScriptedEngine(rendering, demonstrator.reply), harness=demonstrator)
        got = await stack.runner.run(group_jobs([puppet_task("t")], 3), SPEC)
        for trajectory in got:
            failure = trajectory.rollout.failure
            assert failure is not None and failure.boundary == "provider" and says in failure.message
            assert trajectory.rollout.attempt == 1
            assert len(trajectory.steps) == 1
