"""What breaks is named once, has no reward, and leaves its siblings alone."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palestra.envs.errors import SandboxError
from palestra.harness_proxy.engines.base import (
    EngineError,
    EngineUnavailableError,
    Generation,
    PromptTooLongError,
)
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.errors import RolloutError, boundary
from palestra.rollouts.harnesses import Endpoint, ScriptedHarness, ToolLoop, chat_client
from palestra.rollouts.local import Local
from palestra.rollouts.runner import Job, RunSpec, group_jobs
from palestra.rollouts.testing import ENV_ID, Puppet, puppet_task, tool_call
from palestra.rollouts.world import World
from palestra.tasks.task import Task
from palestra.trajectories.model import Failure, Rollout, Sampling, Trajectory
from palestra.trajectories.store import Store

Stage = Callable[..., Awaitable[Local]]
SPEC = RunSpec("run")
GOOD = puppet_task("good")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients ask again three times, at once."""
    monkeypatch.setattr(chat_client, "RETRIES", 3)
    monkeypatch.setattr(chat_client, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(chat_client, "LONGEST_TOLD_S", 0.0)


@pytest.fixture(params=["own thread", "crew"])
def either_host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worlds live in threads of their own, and then in one of many."""
    monkeypatch.setattr(Puppet, "any_thread", request.param == "crew")


async def play_among_siblings(stack: Local, bad: Task, spec: RunSpec = SPEC) -> Trajectory:
    """The rollout of `bad`, after checking that those around it came to no harm."""
    jobs = [Job(GOOD, "good", 0), Job(bad, "bad"), Job(GOOD, "good", 1), Job(GOOD, "good", 2)]
    got = await stack.runner.run(jobs, spec)
    assert [t.rollout.reward for t in got if t.rollout.task_id == "good"] == [1.0] * 3
    return got[1]


def failed(trajectory: Trajectory) -> Failure:
    """The failure of a rollout, which has no reward."""
    assert trajectory.rollout.reward is None
    assert trajectory.rollout.score is None
    assert trajectory.rollout.failure is not None
    return trajectory.rollout.failure


class Acting:
    """A harness from one function."""

    name, version = "acting", "1"

    def __init__(self, play: Callable[[World, Endpoint], Awaitable[object]]) -> None:
        self._play = play

    async def run(self, world: World, endpoint: Endpoint) -> None:
        if world.task.id == "good":
            await world.act('{"name": "submit", "arguments": {}}')
        else:
            await self._play(world, endpoint)

    async def aclose(self) -> None: ...


class TestEnvironment:
    @pytest.mark.usefixtures("either_host")
    @pytest.mark.parametrize(
        ("fault", "where", "says"),
        [
            ("reset", ("env", "reset"), "EnvSetupError: there is no stage"),
            ("first anchor", ("env", "reset"), "KeyError: 'anchor'"),
            ("step", ("env", "step"), "RuntimeError: the string snapped"),
            ("stop iteration", ("env", "step"), "StopIteration: the string snapped"),
            ("exit", ("env", "step"), "SystemExit: the string snapped"),
            ("observation", ("env", "step"), "surrogates not allowed"),
            ("reward", ("env", "step"), "must be finite, got nan"),
            ("anchor", ("env", "step"), "KeyError: 'state_digest'"),
            ("grader", ("grader", "step"), "the gold is gone"),
        ],
    )
    async def test_a_broken_world(
        self, stage: Stage, puppets: list[Puppet], fault: str, where: tuple[str, str], says: str
    ) -> None:
        got = await play_among_siblings(await stage(), puppet_task("bad", fault=fault))
        failure = failed(got)
        assert (failure.boundary, failure.stage) == where
        assert says in failure.message
        assert not failure.retryable
        assert got.rollout.attempt == 1
        while not (closed := [p for p in puppets if p.closed]):
            await asyncio.sleep(0.005)
        assert len(closed) == 1, "only the broken one is not used again"

    @pytest.mark.parametrize(
        ("fault", "says"),
        [
            ("grader", "GraderError: the gold is gone"),
            ("grader bug", "KeyError: 'gold'"),
            ("invalid score", "no evidence was left"),
            ("no score", "TypeError: a grader returns a Score, this one returned NoneType"),
        ],
    )
    async def test_a_grader_that_fails_after_the_agent_gave_up(
        self, stage: Stage, fault: str, says: str
    ) -> None:
        stack = await stage(harness=ScriptedHarness(lambda world: ['{"name": "say", "arguments": {}}']))
        [got] = await stack.runner.run([Job(puppet_task("t", fault=fault), "g")], SPEC)
        failure = failed(got)
        assert (failure.boundary, failure.stage) == ("grader", "score")
        assert says in failure.message
        assert len(got.steps) == 1

    async def test_a_score_that_is_not_valid_on_the_last_step(self, stage: Stage) -> None:
        got = await play_among_siblings(await stage(), puppet_task("bad", fault="invalid score"))
        assert failed(got).boundary == "grader"

    async def test_an_unknown_environment(self, stage: Stage) -> None:
        task = puppet_task("bad").model_copy(update={"env": "palestra/Nowhere-v0"})
        failure = failed(await play_among_siblings(await stage(), task))
        assert (failure.boundary, failure.stage) == ("env", "setup")
        assert "Nowhere" in failure.message

    async def test_a_missing_database(self, stage: Stage, tmp_path: Path) -> None:
        task = Task(
            id="bad",
            family="sql",
            env="palestra/Sql-v0",
            split="train",
            instruction="How many?",
            data={"database": {"file": str(tmp_path / "gone.sqlite")}, "gold_sql": "SELECT 1"},
        )
        failure = failed(await play_among_siblings(await stage(), task))
        assert (failure.boundary, failure.stage) == ("env", "reset")
        assert "gone.sqlite" in failure.message

    async def test_a_corrupt_database(self, stage: Stage, tmp_path: Path) -> None:
        (tmp_path / "torn.sqlite").write_bytes(b"SQLite format 3\x00" + b"\xff" * 5000)
        task = Task(
            id="bad",
            family="sql",
            env="palestra/Sql-v0",
            split="train",
            instruction="How many?",
            data={"database": {"file": str(tmp_path / "torn.sqlite")}, "gold_sql": "SELECT 1"},
        )
        failure = failed(await play_among_siblings(await stage(), task))
        assert (failure.boundary, failure.stage) == ("env", "reset")

    async def test_a_world_that_does_not_close(self, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
        stack = await stage()
        [got] = await stack.runner.run([Job(puppet_task("t", fault="close"), "g")], SPEC)
        await stack.runner.aclose()
        assert got.rollout.reward == 1.0
        assert f"an environment {ENV_ID} did not close" in caplog.text


class TestHarness:
    async def test_a_harness_that_raises(self, stage: Stage) -> None:
        async def play(world: World, endpoint: Endpoint) -> None:
            raise LookupError("no plan")

        failure = failed(await play_among_siblings(await stage(harness=Acting(play)), puppet_task("bad")))
        assert (failure.boundary, failure.stage) == ("harness", "run")
        assert failure.message == "LookupError: no plan"

    async def test_a_harness_that_cancels_itself(self, stage: Stage) -> None:
        async def play(world: World, endpoint: Endpoint) -> None:
            raise asyncio.CancelledError

        failure = failed(await play_among_siblings(await stage(harness=Acting(play)), puppet_task("bad")))
        assert failure == Failure("harness", "run", "it cancelled itself")

    async def test_a_timeout_of_the_harness_is_not_the_budget(self, stage: Stage) -> None:
        async def play(world: World, endpoint: Endpoint) -> None:
            raise TimeoutError("my own clock")

        failure = failed(await play_among_siblings(await stage(harness=Acting(play)), puppet_task("bad")))
        assert failure == Failure("harness", "run", "TimeoutError: my own clock")

    async def test_acting_after_the_end(self, stage: Stage) -> None:
        async def play(world: World, endpoint: Endpoint) -> None:
            await world.act('{"name": "submit", "arguments": {}}')
            await world.act('{"name": "say", "arguments": {}}')

        got = await play_among_siblings(await stage(harness=Acting(play)), puppet_task("bad"))
        assert failed(got) == Failure("harness", "step", "it acted after the end of the episode")
        assert len(got.steps) == 1

    async def test_a_broken_world_that_the_harness_hides(self, stage: Stage) -> None:
        async def play(world: World, endpoint: Endpoint) -> None:
            for _ in range(3):
                with contextlib.suppress(Exception):
                    await world.act('{"name": "submit", "arguments": {}}')

        got = await play_among_siblings(await stage(harness=Acting(play)), puppet_task("bad", fault="step"))
        assert failed(got).boundary == "env"
        assert not got.steps

    @pytest.mark.usefixtures("either_host")
    async def test_a_step_that_the_harness_cancels(self, stage: Stage, puppets: list[Puppet]) -> None:
        """The world took an action that is not on record: nothing that follows is a measurement."""

        async def play(world: World, endpoint: Endpoint) -> None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(world.act("too slow"), 0.02)
            with contextlib.suppress(RolloutError):
                await world.act('{"name": "submit", "arguments": {}}')

        bad = puppet_task("bad", step_s=0.15)
        got = await play_among_siblings(await stage(harness=Acting(play)), bad)
        assert failed(got) == Failure("harness", "step", "it cancelled a step that was under way")
        assert not got.steps
        while not (closed := [p for p in puppets if p.closed]):
            await asyncio.sleep(0.005)
        assert [p.resets for p in closed] == [1]

    async def test_an_action_that_cannot_be_recorded(self, stage: Stage, store: Store) -> None:
        async def play(world: World, endpoint: Endpoint) -> None:
            await world.act("\ud800")

        stack = await stage(harness=Acting(play), store=store)
        assert failed(await play_among_siblings(stack, puppet_task("bad"))).boundary == "harness"
        assert len(store) == 4

    async def test_actions_at_once_are_taken_one_after_the_other(self, stage: Stage) -> None:
        async def play(world: World, endpoint: Endpoint) -> None:
            says = (f'{{"name": "say", "arguments": {{"text": "{i}"}}}}' for i in range(4))
            await asyncio.gather(*(world.act(action) for action in says))

        got = await play_among_siblings(await stage(harness=Acting(play)), puppet_task("bad"))
        assert got.rollout.reward == 0.0
        for before, after in zip(got.steps, got.steps[1:], strict=False):
            assert after.anchor == (before.anchor + "\n" + before.action).strip()

    @pytest.mark.usefixtures("either_host")
    async def test_a_harness_that_goes_on_after_it_returned(self, stage: Stage) -> None:
        """The step it left running ends before the grading, and no other is begun, here or in the next episode."""
        left: list[asyncio.Task[str]] = []

        async def play(world: World, endpoint: Endpoint) -> None:
            for _ in range(3):
                left.append(asyncio.create_task(world.act("still here")))
            await asyncio.sleep(0.02)

        stack = await stage(harness=Acting(play), concurrency=1)
        bad = puppet_task("bad", step_s=0.1)
        got = await stack.runner.run([Job(bad, "bad"), Job(GOOD, "good"), Job(GOOD, "good", 1)], SPEC)
        outcomes = await asyncio.gather(*left, return_exceptions=True)
        assert [s.action for s in got[0].steps] == ["still here"]
        assert [isinstance(o, RolloutError) for o in outcomes] == [False, True, True]
        assert [t.rollout.reward for t in got[1:]] == [1.0, 1.0]
        assert [len(t.steps) for t in got[1:]] == [1, 1]


@pytest.mark.usefixtures("either_host")
class TestBudget:
    async def test_a_spent_wall_clock_is_no_measurement(self, stage: Stage) -> None:
        async def play(world: World, endpoint: Endpoint) -> None:
            await asyncio.sleep(30)

        got = await play_among_siblings(await stage(harness=Acting(play)), puppet_task("bad", wall_s=1.0))
        assert failed(got) == Failure("budget", "run", "the attempt took more than 1 s")
        assert got.rollout.attempt == 1

    async def test_a_step_that_outlives_its_attempt(self, stage: Stage, puppets: list[Puppet]) -> None:
        """The world is closed when the step ends, never before, and nobody else gets it."""
        stack = await stage(harness=ScriptedHarness(lambda world: ["one"]), concurrency=1)
        bad = puppet_task("bad", wall_s=1.0, step_s=4.0)
        got = await stack.runner.run([Job(bad, "bad"), *group_jobs([GOOD], 3)], SPEC)
        assert failed(got[0]).boundary == "budget"
        assert [t.rollout.reward for t in got[1:]] == [0.0] * 3
        assert puppets[0].closed == 0 and puppets[0].stepping
        await _closed(puppets[0])
        assert puppets[0].resets == 1
        assert len(puppets) == 2

    async def test_grading_takes_no_longer_than_an_attempt(self, stage: Stage) -> None:
        stack = await stage(harness=ScriptedHarness(lambda world: ["one"]))
        task = puppet_task("t", wall_s=1.0, grade_s=3.0)
        [got] = await stack.runner.run([Job(task, "g")], SPEC)
        assert failed(got) == Failure("grader", "score", "grading took more than 1 s")


class Provider(ScriptedEngine):
    """Fails some calls of the rollouts of task "bad"."""

    def __init__(self, rendering: Rendering, errors: Sequence[Exception | None]) -> None:
        super().__init__(rendering, lambda prompt, session: tool_call("submit"))
        self._errors = iter(errors)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str = ""
    ) -> Generation:
        error = next(self._errors, None) if "/bad/" in session else None
        if error is not None:
            raise error
        return await super().generate(prompt_ids, sampling, session=session)


DOWN = EngineUnavailableError("starting")


class TestProvider:
    async def test_an_outage_that_ends_in_time_is_only_noted(
        self, stage: Stage, rendering: Rendering
    ) -> None:
        got = await play_among_siblings(await stage(Provider(rendering, [DOWN] * 3)), puppet_task("bad"))
        assert got.rollout.reward == 1.0
        assert got.rollout.attempt == 1
        assert "generate: starting" in got.rollout.findings
        assert len(got.calls) == 1

    async def test_an_outage_that_lasts_is_tried_again(self, stage: Stage, rendering: Rendering) -> None:
        got = await play_among_siblings(await stage(Provider(rendering, [DOWN] * 5)), puppet_task("bad"))
        assert got.rollout.reward == 1.0
        assert got.rollout.attempt == 2
        assert got.rollout.findings[0] == "attempt 1 failed at provider in generate: starting"
        assert [c.seq for c in got.calls] == [0]

    async def test_an_outage_without_end(self, stage: Stage, rendering: Rendering, store: Store) -> None:
        stack = await stage(Provider(rendering, [DOWN] * 99), store=store)
        got = await play_among_siblings(stack, puppet_task("bad"))
        failure = failed(got)
        assert (failure.boundary, failure.retryable) == ("provider", True)
        assert got.rollout.attempt == 3
        assert len([f for f in got.rollout.findings if f.startswith("attempt ")]) == 2
        assert store.rollout("run/bad/0").failure == failure

    async def test_attempts_are_bounded_by_the_run(self, stage: Stage, rendering: Rendering) -> None:
        spec = RunSpec("run", attempts=1)
        got = await play_among_siblings(
            await stage(Provider(rendering, [DOWN] * 4)), puppet_task("bad"), spec
        )
        assert failed(got).boundary == "provider"
        assert got.rollout.attempt == 1

    @pytest.mark.parametrize("error", [EngineError("weights are gone"), PromptTooLongError(9, 8)])
    async def test_a_final_failure_is_not_tried_again(
        self, stage: Stage, rendering: Rendering, error: EngineError
    ) -> None:
        engine = Provider(rendering, [error])
        got = await play_among_siblings(await stage(engine), puppet_task("bad"))
        failure = failed(got)
        assert (failure.boundary, failure.retryable) == ("provider", False)
        assert str(error) in failure.message
        assert got.rollout.attempt == 1

    async def test_a_bug_of_the_proxy_is_its_own(self, stage: Stage, rendering: Rendering) -> None:
        got = await play_among_siblings(
            await stage(Provider(rendering, [ZeroDivisionError("oops")])), puppet_task("bad")
        )
        failure = failed(got)
        assert (failure.boundary, failure.message) == ("proxy", "ZeroDivisionError: oops")

    async def test_an_engine_that_breaks_its_contract(self, stage: Stage, rendering: Rendering) -> None:
        class Careless(ScriptedEngine):
            async def generate(self, *args: Any, **options: Any) -> Generation:
                generation = await super().generate(*args, **options)
                return replace(generation, logprobs=[float("nan")] * len(generation.token_ids))

        stack = await stage(Careless(rendering, [tool_call("submit")] * 9))
        [got] = await stack.runner.run([Job(puppet_task("t"), "g")], SPEC)
        assert failed(got).boundary == "provider"
        assert not got.calls and not got.nodes

    async def test_a_failure_that_the_harness_hides(self, stage: Stage, rendering: Rendering) -> None:
        """The harness shrugs and hands in a guess: its score would measure our outage, not the agent."""
        loop = ToolLoop()

        async def play(world: World, endpoint: Endpoint) -> None:
            with contextlib.suppress(RolloutError):
                await loop.run(world, endpoint)
            await world.act('{"name": "submit", "arguments": {"value": 0}}')

        stack = await stage(Provider(rendering, [DOWN] * 99), harness=Acting(play))
        got = await play_among_siblings(stack, puppet_task("bad"))
        await loop.aclose()
        assert failed(got).boundary == "provider"
        assert got.rollout.attempt == 3

    async def test_a_proxy_that_is_gone(self, stage: Stage) -> None:
        loop = ToolLoop()

        async def play(world: World, endpoint: Endpoint) -> None:
            await loop.run(world, replace(endpoint, base_url="http://127.0.0.1:1/v1"))

        got = await play_among_siblings(await stage(harness=Acting(play)), puppet_task("bad"))
        await loop.aclose()
        failure = failed(got)
        assert failure.boundary == "provider" and "gave up after 4 tries" in failure.message
        assert got.rollout.attempt == 3


class TestStopping:
    @pytest.mark.usefixtures("either_host")
    async def test_a_cancelled_run_leaves_nothing_half_done(
        self, stage: Stage, store: Store, puppets: list[Puppet]
    ) -> None:
        stack = await stage(store=store, concurrency=4)
        jobs = [Job(GOOD, "good"), *group_jobs([puppet_task("slow", step_s=1.0)], 6)]
        committed = asyncio.Event()
        run = asyncio.create_task(stack.runner.run(jobs, SPEC, lambda r: committed.set()))
        await committed.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

        assert store.ids() == ["run/good/0"]
        assert not stack.proxy._sessions
        await stack.runner.aclose()
        for puppet in puppets:
            await _closed(puppet)
        got = await stack.runner.run(jobs, SPEC)
        assert [t.rollout.reward for t in got] == [1.0] * 7
        assert sorted(store.ids()) == sorted(j.rollout_id("run") for j in jobs)

    async def test_an_error_of_the_callers_stops_the_run_and_flies(self, stage: Stage, store: Store) -> None:
        def on_done(rollout: Rollout) -> None:
            raise LookupError("no screen")

        stack = await stage(store=store)
        with pytest.raises(LookupError, match="no screen"):
            await stack.runner.run(group_jobs([GOOD], 4), SPEC, on_done)
        assert not stack.proxy._sessions
        got = await stack.runner.run(group_jobs([GOOD], 4), SPEC)
        assert len(store) == len(got) == 4

    def test_a_full_disk_stops_the_run_and_it_goes_on_later(self, tmp_path: Path) -> None:
        script = tmp_path / "run.py"
        script.write_text(FULL_DISK)
        done = subprocess.run([sys.executable, script, tmp_path / "store"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "full after" in done.stdout and "then all 40" in done.stdout


FULL_DISK = textwrap.dedent("""
    import asyncio, resource, signal, sys
    from pathlib import Path
    from palestra.harness_proxy.engines.scripted import ScriptedEngine
    from palestra.harness_proxy.rendering import Rendering
    from palestra.harness_proxy.testing import make_tiny_tokenizer
    from palestra.rollouts.local import local
    from palestra.rollouts.runner import RunSpec, group_jobs
    from palestra.rollouts.testing import puppet_task, tool_call
    from palestra.trajectories.errors import StoreFullError
    from palestra.trajectories.store import Store

    path = Path(sys.argv[1])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    jobs = group_jobs([puppet_task(f"t{i}") for i in range(20)], 2)
    rendering = Rendering.load(make_tiny_tokenizer(path.parent / "model"))

    async def main():
        engine = ScriptedEngine(rendering, lambda prompt, session: tool_call("submit"))
        with Store.open(path, write=True) as store:
            async with local(engine, rendering, store=store, concurrency=4) as stack:
                resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
                try:
                    await stack.runner.run(jobs, RunSpec("run"))
                except StoreFullError:
                    assert not stack.proxy._sessions
                kept = store.ids()
                assert 0 < len(kept) < 40
                assert all(store.get(i).rollout.reward == 1.0 for i in kept)
                print("full after", len(kept))
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
                got = await stack.runner.run(jobs, RunSpec("run"))
                assert [t.rollout.reward for t in got] == [1.0] * 40
                assert store.ids()[: len(kept)] == kept
                print("then all", len(set(store.ids())))

    asyncio.run(main())
""")


class TestBoundary:
    def test_the_innermost_boundary_is_named(self) -> None:
        with pytest.raises(RolloutError) as caught, boundary("harness", "run"), boundary("env", "step"):
            raise KeyError("x")
        assert caught.value.failure == Failure("env", "step", "KeyError: 'x'")
        assert isinstance(caught.value.__cause__, KeyError)

    def test_only_infrastructure_is_tried_again(self) -> None:
        assert RolloutError("provider", "s", "m").failure.retryable
        assert not RolloutError("provider", "s", "m", final=True).failure.retryable
        assert not RolloutError("env", "s", "m").failure.retryable

    def test_what_contains_a_world_is_the_sandbox(self) -> None:
        with pytest.raises(RolloutError) as caught, boundary("env", "step"):
            raise SandboxError("the page crashed")
        assert caught.value.failure.boundary == "sandbox" and caught.value.failure.retryable

    def test_interrupts_are_nobodys_failure(self) -> None:
        with pytest.raises(KeyboardInterrupt), boundary("env", "step"):
            raise KeyboardInterrupt

    async def test_a_cancellation_from_outside_passes(self) -> None:
        async def inside() -> None:
            with boundary("harness", "run"):
                await asyncio.sleep(30)

        task = asyncio.create_task(inside())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def _closed(puppet: Puppet) -> None:
    """Wait until the world is closed, once, and in its own thread where it has one."""
    while not puppet.closed:
        await asyncio.sleep(0.005)
    assert puppet.closed == 1
    assert len(puppet.threads) == 1 or puppet.any_thread
