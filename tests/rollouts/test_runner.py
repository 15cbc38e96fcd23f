"""What becomes of jobs: order, bounds, outcomes, the join between calls and steps, resuming."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from palestra.harness_proxy.engines.base import Generation
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.errors import CaptureError
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.errors import ResumeError
from palestra.rollouts.harnesses import Endpoint, ScriptedHarness
from palestra.rollouts.local import Local
from palestra.rollouts.runner import Job, Runner, RunSpec, group_jobs, seed_of
from palestra.rollouts.testing import Puppet, puppet_task, tool_call
from palestra.rollouts.world import World
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Rollout, Sampling, Trajectory
from palestra.trajectories.store import Store

Stage = Callable[..., Awaitable[Local]]
SPEC = RunSpec("run", seed=3)


def same_play(a: Trajectory, b: Trajectory) -> bool:
    """Whether the two hold the same tokens, calls and steps, whenever and however long they took."""
    return (
        [n.token_ids.tolist() for n in a.nodes] == [n.token_ids.tolist() for n in b.nodes]
        and [n.logprobs.tolist() for n in a.nodes] == [n.logprobs.tolist() for n in b.nodes]
        and [(c.seq, c.node_id, c.effective) for c in a.calls]
        == [(c.seq, c.node_id, c.effective) for c in b.calls]
        and [(s.action, s.observation, s.anchor, s.call) for s in a.steps]
        == [(s.action, s.observation, s.anchor, s.call) for s in b.steps]
        and a.rollout.score == b.rollout.score
        and a.rollout.seed == b.rollout.seed
    )


class TestOutcome:
    async def test_a_solved_task_is_scored_and_its_record_complete(self, stage: Stage) -> None:
        task = puppet_task("t")
        stack = await stage()
        [got] = await stack.runner.run([Job(task, "g", 2)], SPEC)

        rollout = got.rollout
        assert (rollout.rollout_id, rollout.run_id, rollout.group_id) == ("run/g/2", "run", "g")
        assert (rollout.task_id, rollout.sample_index, rollout.attempt) == ("t", 2, 1)
        assert rollout.task_hash == task.content_hash
        assert rollout.seed == seed_of(3, "run/g/2")
        assert rollout.reward == 1.0
        assert rollout.score is not None and rollout.score.grader == "puppet"
        assert not rollout.truncated
        assert rollout.policy_versions == (0, 0)
        assert set(rollout.timings) == {"setup", "agent", "env", "grade", "total"}
        assert all(seconds >= 0 for seconds in rollout.timings.values())
        assert [s.reward for s in got.steps] == [0.0, 1.0]
        assert [s.terminated for s in got.steps] == [False, True]
        assert got.tools

    async def test_steps_join_the_calls_that_caused_them(self, stage: Stage) -> None:
        stack = await stage()
        [got] = await stack.runner.run([Job(puppet_task("t"), "g")], SPEC)
        graph = TokenGraph(got.nodes)
        engine = stack.engine
        assert isinstance(engine, ScriptedEngine)
        for step, call, asked in zip(got.steps, got.calls, engine.calls[-2:], strict=True):
            assert step.call == call.seq
            assert call.delivered
            [named] = got.nodes[call.node_id].message.tool_calls
            assert step.tool_call_id == named.id
            assert asked.generation is not None
            seen_and_sampled = asked.prompt_ids + asked.generation.token_ids
            assert graph.path_ids(call.node_id).tolist() == seen_and_sampled
        assert got.steps[0].anchor == "" and got.steps[1].anchor == got.steps[0].action

    async def test_results_come_in_the_order_of_the_jobs(self, stage: Stage) -> None:
        slow = [puppet_task(f"t{i}", step_s=0.02 * (3 - i)) for i in range(4)]
        stack = await stage()
        finished: list[str] = []
        jobs = group_jobs(slow, 2, prefix="p/")
        got = await stack.runner.run(jobs, SPEC, lambda r: finished.append(r.rollout_id))
        assert [t.rollout.rollout_id for t in got] == [j.rollout_id("run") for j in jobs]
        assert sorted(finished) == sorted(j.rollout_id("run") for j in jobs)
        assert finished != [j.rollout_id("run") for j in jobs]

    async def test_no_jobs(self, stage: Stage) -> None:
        assert await (await stage()).runner.run([], SPEC) == []

    async def test_an_agent_that_gives_up_is_graded_as_it_stands(self, stage: Stage) -> None:
        stack = await stage(harness=ScriptedHarness(lambda world: ["I do not know"]))
        [got] = await stack.runner.run([Job(puppet_task("t"), "g")], SPEC)
        assert got.rollout.reward == 0.0
        assert not got.rollout.truncated
        assert not got.calls and got.rollout.policy_versions is None
        assert [s.call for s in got.steps] == [None]

    async def test_a_spent_turn_budget_truncates_and_is_scored(self, stage: Stage) -> None:
        stack = await stage(lambda prompt, session: tool_call("say", text="again"))
        [got] = await stack.runner.run([Job(puppet_task("t", turns=3), "g")], SPEC)
        assert got.rollout.reward == 0.0
        assert got.rollout.truncated
        assert [s.truncated for s in got.steps] == [False, False, True]

    async def test_a_spent_token_budget_truncates_and_is_scored(self, stage: Stage) -> None:
        stack = await stage(lambda prompt, session: tool_call("say", text="again and again " * 8))
        task = puppet_task("t", turns=1000, tokens=2000)
        [got] = await stack.runner.run([Job(task, "g")], SPEC)
        assert got.rollout.reward == 0.0
        assert got.rollout.truncated
        assert not got.steps[-1].truncated
        assert "stopped: max_path_tokens" in got.rollout.findings
        graph = TokenGraph(got.nodes)
        assert 0 < max(graph.path_length(c.node_id) for c in got.calls) <= 2000

    async def test_a_prompt_larger_than_the_budget_is_a_truncated_zero_without_calls(
        self, stage: Stage
    ) -> None:
        stack = await stage()
        [got] = await stack.runner.run([Job(puppet_task("t", tokens=10), "g")], SPEC)
        assert got.rollout.reward == 0.0
        assert got.rollout.truncated
        assert not got.calls and not got.steps

    async def test_policy_versions_span_all_sampled_tokens(self, stage: Stage, rendering: Rendering) -> None:
        class Updated(ScriptedEngine):
            """Has its weights replaced in the middle of each reply."""

            async def generate(self, *args: Any, **options: Any) -> Generation:
                generation = await super().generate(*args, **options)
                return replace(generation, versions=((0, 4), (2, 5)))

        stack = await stage(Updated(rendering, [tool_call("submit")]))
        [got] = await stack.runner.run([Job(puppet_task("t"), "g")], SPEC)
        assert got.calls[0].policy_version == 4
        assert got.rollout.policy_versions == (4, 5)


class TestConcurrency:
    async def test_no_more_attempts_at_once_than_allowed(self, stage: Stage) -> None:
        playing, most = 0, 0

        class Counting:
            name, version = "counting", "1"

            async def run(self, world: World, endpoint: Endpoint) -> None:
                nonlocal playing, most
                playing += 1
                most = max(most, playing)
                await asyncio.sleep(0.005)
                await world.act("hello")
                playing -= 1

            async def aclose(self) -> None: ...

        stack = await stage(harness=Counting(), concurrency=3)
        got = await stack.runner.run(group_jobs([puppet_task("t")], 12), SPEC)
        assert len(got) == 12
        assert most == 3

    async def test_environments_are_used_again(self, stage: Stage, puppets: list[Puppet]) -> None:
        stack = await stage(concurrency=2)
        await stack.runner.run(group_jobs([puppet_task("t")], 10), SPEC)
        assert 1 <= len(puppets) <= 2
        assert sum(p.resets for p in puppets) == 10

    async def test_an_environment_stays_in_its_thread(self, stage: Stage, puppets: list[Puppet]) -> None:
        stack = await stage(concurrency=3)
        await stack.runner.run(group_jobs([puppet_task("t")], 9), SPEC)
        await stack.runner.aclose()
        assert all(len(p.threads) == 1 and p.closed == 1 for p in puppets)

    async def test_slow_worlds_do_not_hold_up_others(self, stage: Stage) -> None:
        """More worlds sleep than there are cores, and quick rollouts end before any of them wakes."""
        finished: list[str] = []
        jobs = [Job(puppet_task(f"slow{i}", step_s=2.0), f"slow{i}") for i in range(12)]
        jobs += [Job(puppet_task(f"quick{i}"), f"quick{i}") for i in range(12)]
        stack = await stage(harness=ScriptedHarness(lambda world: ["one"]))
        await stack.runner.run(jobs, SPEC, lambda r: finished.append(r.task_id))
        assert all(name.startswith("quick") for name in finished[:12])

    def test_bounds_are_checked(self) -> None:
        with pytest.raises(ValueError, match="concurrency must be at least 1, got 0"):
            Runner(None, None, concurrency=0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="attempts must be at least 1, got 0"):
            RunSpec("run", attempts=0)


class TestSeeds:
    async def test_the_same_seed_gives_the_same_result_whatever_ran_before(self, stage: Stage) -> None:
        jobs = group_jobs([puppet_task("a"), puppet_task("b")], 2)
        stack = await stage()
        first = await stack.runner.run(jobs, SPEC)
        again = await (await stage(concurrency=1)).runner.run(jobs[::-1], SPEC)
        assert all(same_play(a, b) for a, b in zip(first, again[::-1], strict=True))

    async def test_attempts_have_seeds_of_their_own(self, stage: Stage) -> None:
        stack = await stage()
        got = await stack.runner.run(group_jobs([puppet_task("a"), puppet_task("b")], 4), SPEC)
        seeds = {t.rollout.seed for t in got} | {c.effective.seed for t in got for c in t.calls}
        assert len(seeds) == 8 + 16

    async def test_sampling_is_that_of_the_run(self, stage: Stage) -> None:
        sampling = Sampling(temperature=0.5, max_tokens=77)
        [got] = await (await stage()).runner.run(
            [Job(puppet_task("t"), "g")], RunSpec("r", sampling=sampling)
        )
        assert {(c.effective.temperature, c.effective.max_tokens) for c in got.calls} == {(0.5, 77)}


class TestResuming:
    async def test_what_is_committed_is_not_run_again(self, stage: Stage, store: Store) -> None:
        jobs = group_jobs([puppet_task(f"t{i}") for i in range(3)], 2)
        first = await (await stage(store=store)).runner.run(jobs[:4], SPEC)
        stack = await stage(store=store)
        done: list[Rollout] = []
        second = await stack.runner.run(jobs, SPEC, done.append)

        assert [t.rollout.rollout_id for t in second] == [j.rollout_id("run") for j in jobs]
        assert len(done) == 6
        assert len(store) == 6 == len(set(store.ids()))
        assert all(same_play(a, b) for a, b in zip(first, second, strict=False))
        assert isinstance(stack.engine, ScriptedEngine)
        assert {c.session for c in stack.engine.calls} == {j.rollout_id("run") for j in jobs[4:]}

    async def test_failed_rollouts_are_committed_too(
        self, stage: Stage, store: Store, puppets: list[Puppet]
    ) -> None:
        stack = await stage(store=store)
        jobs = [Job(puppet_task("t", fault="reset"), "g")]
        await stack.runner.run(jobs, SPEC)
        [again] = await stack.runner.run(jobs, SPEC)
        assert again.rollout.failure is not None and again.rollout.reward is None
        assert sum(p.resets for p in puppets) == 1

    async def test_a_job_that_is_there_twice_is_refused(self, stage: Stage) -> None:
        jobs = [Job(puppet_task("t"), "g"), Job(puppet_task("t"), "g")]
        with pytest.raises(ValueError, match="1 jobs are there more than once, 'run/g/0'"):
            await (await stage()).runner.run(jobs, SPEC)

    @pytest.mark.parametrize(
        ("job", "spec", "named"),
        [
            (Job(puppet_task("t", step_s=0.0), "g"), SPEC, "task_hash"),
            (Job(puppet_task("t"), "g"), RunSpec("run", seed=4), "seed"),
            (Job(puppet_task("t"), "g"), RunSpec("run", "eval", seed=3), "mode"),
            (Job(puppet_task("t"), "/g"), RunSpec("run", seed=3), None),
        ],
    )
    async def test_a_rollout_of_another_making_is_not_taken_for_ours(
        self, stage: Stage, store: Store, job: Job, spec: RunSpec, named: str | None
    ) -> None:
        runner = (await stage(store=store)).runner
        await runner.run([Job(puppet_task("t"), "g")], SPEC)
        if named is None:
            await runner.run([job], spec)
            assert len(store) == 2
            return
        with pytest.raises(ResumeError, match=f"'run/g/0' is in the store with {named} "):
            await runner.run([job], spec)
        assert len(store) == 1

    async def test_names_that_run_into_each_other_are_told_apart(self, stage: Stage, store: Store) -> None:
        runner = (await stage(store=store)).runner
        await runner.run([Job(puppet_task("t"), "b/c")], RunSpec("a"))
        with pytest.raises(ResumeError, match="run_id 'a', and this run has 'a/b'"):
            await runner.run([Job(puppet_task("t"), "c")], RunSpec("a/b"))

    async def test_train_mode_needs_tokens(self, rendering: Rendering, stage: Stage, store: Store) -> None:
        stack = await stage(ScriptedEngine(rendering, ["x"], capture_level="text"), store=store)
        with pytest.raises(CaptureError, match="train mode needs an engine that gives tokens"):
            await stack.runner.run(group_jobs([puppet_task("t")], 3), SPEC)
        assert not len(store)


class TestAgents:
    """Whatever the agent says is legal, is recorded, and is answered with something to learn from."""

    async def play(self, stage: Stage, *replies: Any, turns: int = 5) -> Trajectory:
        stack = await stage([*replies, tool_call("submit", value=0.5)])
        [got] = await stack.runner.run([Job(puppet_task("t", turns=turns), "g")], SPEC)
        assert got.rollout.failure is None, got.rollout.failure
        seqs = {c.seq for c in got.calls}
        assert all(s.call in seqs for s in got.steps)
        sampled = sum(int(n.sampled.sum()) for n in got.nodes)
        assert sampled == sum(len(got.nodes[c.node_id].logprobs) for c in got.calls)
        return got

    async def test_plain_text(self, stage: Stage) -> None:
        got = await self.play(stage, "I would rather talk.")
        assert got.steps[0].action == "I would rather talk."
        assert not got.steps[0].valid_action
        assert got.steps[0].observation.startswith("error: answer with a tool call")
        assert got.rollout.reward == 0.5

    async def test_nothing_but_the_stop_token(self, stage: Stage, rendering: Rendering) -> None:
        got = await self.play(stage, [rendering.stop_token_ids[0]])
        assert got.steps[0].action == ""
        assert not got.steps[0].valid_action

    async def test_an_unknown_tool(self, stage: Stage) -> None:
        got = await self.play(stage, tool_call("fly", height=3))
        assert not got.steps[0].valid_action
        assert "there is no tool 'fly'" in got.steps[0].observation

    async def test_wrong_arguments(self, stage: Stage) -> None:
        got = await self.play(stage, tool_call("submit", value="much"))
        assert not got.steps[0].valid_action
        assert len(got.steps) == 2

    @pytest.mark.parametrize(
        "reply",
        [
            '<tool_call>\n{"name": "say", "arguments": {"text": \n</tool_call>',
            '<tool_call>\n{"name": "say", "arguments": "text"}\n</tool_call>',
            '<tool_call>\n{"name": "say", "arguments": {"text": NaN}}\n</tool_call>',
            '<tool_call>\n{"name": "say", "arguments": {"text": "\\ud800"}}\n</tool_call>',
            '<tool_call>\n{"name": "say", "arguments": {"text": 1' + "0" * 400 + "}}\n</tool_call>",
            "<tool_call>" * 20,
            '{"name": "say"',
            "[" * 3000,
        ],
    )
    async def test_malformed_calls(self, stage: Stage, reply: str) -> None:
        got = await self.play(stage, reply)
        assert not got.steps[0].valid_action
        assert got.rollout.reward == 0.5

    async def test_special_tokens_in_the_middle(self, stage: Stage, rendering: Rendering) -> None:
        ids = rendering.encode("<|im_start|>user\nignore<|im_end|>\n<tool_call>")
        got = await self.play(stage, ids)
        assert got.nodes[got.calls[0].node_id].token_ids[-len(ids) :].tolist() == ids

    async def test_several_calls_in_one_message(self, stage: Stage) -> None:
        reply = "\n".join(tool_call("say", text=t) for t in "abc")
        got = await self.play(stage, reply)
        assert [s.call for s in got.steps] == [0, 0, 0, 1]
        assert [s.observation for s in got.steps[:3]] == ["heard a", "heard b", "heard c"]
        assert len({s.tool_call_id for s in got.steps}) == 4
        tools = [n.message for n in got.nodes if n.message.role == "tool"]
        assert [m.content for m in tools] == ["heard a", "heard b", "heard c"]

    async def test_calls_after_the_end_are_not_played(self, stage: Stage) -> None:
        reply = "\n".join([tool_call("submit", value=0.25), tool_call("submit", value=1.0)])
        got = await self.play(stage, reply)
        assert got.rollout.reward == 0.25
        assert len(got.steps) == 1 and got.steps[0].terminated

    async def test_calls_past_the_turn_budget_are_not_played(self, stage: Stage) -> None:
        got = await self.play(stage, "\n".join([tool_call("say")] * 9), turns=3)
        assert len(got.steps) == 3
        assert got.rollout.truncated and got.rollout.reward == 0.0

    async def test_a_reply_cut_in_the_middle_of_a_call(self, stage: Stage) -> None:
        stack = await stage([tool_call("say", text="a very long story " * 20), tool_call("submit")])
        spec = RunSpec("run", sampling=Sampling(max_tokens=60))
        [got] = await stack.runner.run([Job(puppet_task("t"), "g")], spec)
        assert got.calls[0].finish_reason == "length"
        assert not got.steps[0].valid_action
        assert got.rollout.reward == 1.0

    async def test_logprobs_are_those_of_the_engine(self, stage: Stage) -> None:
        stack = await stage([tool_call("say"), tool_call("submit")])
        [got] = await stack.runner.run([Job(puppet_task("t"), "g")], SPEC)
        assert isinstance(stack.engine, ScriptedEngine)
        for call, asked in zip(got.calls, stack.engine.calls, strict=True):
            assert asked.generation is not None
            recorded = got.nodes[call.node_id].logprobs
            assert np.array_equal(recorded, np.array(asked.generation.logprobs, np.float32))
