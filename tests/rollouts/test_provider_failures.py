"""What breaks at the engine or the proxy, and runs that are stopped: named once, without a reward, retried by rule."""

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

from failing_rollouts import GOOD, SPEC, Acting, closed, failed, play_among_siblings
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
from palestra.rollouts.harnesses import Endpoint, ToolLoop
from palestra.rollouts.local import Local
from palestra.rollouts.runner import Job, RunSpec, group_jobs
from palestra.rollouts.testing import Puppet, puppet_task, tool_call
from palestra.rollouts.world import World
from palestra.trajectories.model import Failure, Rollout, Sampling
from palestra.trajectories.store import Store

Stage = Callable[..., Awaitable[Local]]
pytestmark = pytest.mark.usefixtures("impatient")


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

        assert {r.reward for r in store.rollouts()} == {1.0}, "what was committed is whole"
        assert len(store) < len(jobs)
        assert not stack.proxy._sessions
        await stack.runner.aclose()
        for puppet in puppets:
            await closed(puppet)
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
