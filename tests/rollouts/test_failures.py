"""What breaks in the world, the harness or the budget is named once, has no reward, and leaves its siblings alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from failing_rollouts import GOOD, SPEC, Acting, closed, failed, play_among_siblings
from palestra.rollouts.errors import RolloutError
from palestra.rollouts.harnesses import Endpoint, ScriptedHarness
from palestra.rollouts.local import Local
from palestra.rollouts.runner import Job, group_jobs
from palestra.rollouts.testing import ENV_ID, Puppet, puppet_task
from palestra.rollouts.world import World
from palestra.tasks.task import Task
from palestra.trajectories.model import Failure
from palestra.trajectories.store import Store

Stage = Callable[..., Awaitable[Local]]
pytestmark = pytest.mark.usefixtures("impatient")


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
        await closed(puppets[0])
        assert puppets[0].resets == 1
        assert len(puppets) == 2

    async def test_grading_takes_no_longer_than_an_attempt(self, stage: Stage) -> None:
        stack = await stage(harness=ScriptedHarness(lambda world: ["one"]))
        task = puppet_task("t", wall_s=1.0, grade_s=3.0)
        [got] = await stack.runner.run([Job(task, "g")], SPEC)
        assert failed(got) == Failure("grader", "score", "grading took more than 1 s")
