"""Attempts that die with their process: their calls are kept, their jobs are played again, nothing is scored 0."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from palestra.rollouts.local import Local
from palestra.rollouts.runner import Job, RunSpec
from palestra.rollouts.testing import puppet_task, tool_call
from palestra.trajectories.store import Store

Stage = Callable[..., Awaitable[Local]]

KILLED = """
import asyncio, os, signal, sys
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.rollouts.local import local
from palestra.rollouts.runner import Job, RunSpec
from palestra.rollouts.testing import puppet_task, tool_call
from palestra.trajectories.store import Store

path, calls = sys.argv[1], 0

def reply(prompt, session):
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return tool_call("say", text=str(calls))

async def main():
    rendering = Rendering.load(make_tiny_tokenizer(path + "-model"))
    with Store.open(path, write=True) as store:
        async with local(ScriptedEngine(rendering, reply), rendering, store=store) as stack:
            await stack.runner.run([Job(puppet_task("t"), "g")], RunSpec("run"))

asyncio.run(main())
"""


def die(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL


async def test_a_killed_attempt_is_kept_and_played_again(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "store"
    for _ in range(2):
        die(path)
    with Store.open(path, write=True) as store:
        assert store.ids() == ["run/g/0~1", "run/g/0~2"]
        for number in (1, 2):
            lost = store.get(f"run/g/0~{number}")
            assert lost.rollout.attempt == number and lost.rollout.reward is None
            assert lost.rollout.failure is not None and lost.rollout.failure.boundary == "proxy"
            assert [lost.nodes[c.node_id].message.tool_calls[0].arguments for c in lost.calls] == [
                '{"text":"1"}',
                '{"text":"2"}',
            ]
        stack = await stage([tool_call("submit")], store=store)
        [got] = await stack.runner.run([Job(puppet_task("t"), "g")], RunSpec("run"))
        assert (got.rollout.attempt, got.rollout.reward) == (3, 1.0)
        assert "attempt 1 was lost" in got.rollout.findings[0]
        assert store.ids(run_id="run") == ["run/g/0"], "lost attempts are no outcomes of the run"
    assert not list((path / "journal").iterdir())


async def test_an_interrupted_attempt_leaves_nothing(stage: Stage, store: Store) -> None:
    stack = await stage([tool_call("say"), tool_call("say")], store=store)
    job = Job(puppet_task("t", step_s=0.2), "g")
    running = asyncio.create_task(stack.runner.run([job], RunSpec("run")))
    while not list((store.path / "journal").iterdir()):
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not list((store.path / "journal").iterdir())


async def test_attempts_that_failed_go_with_the_one_that_is_committed(stage: Stage, store: Store) -> None:
    stack = await stage([tool_call("say"), ZeroDivisionError()] * 3, store=store)
    [got] = await stack.runner.run([Job(puppet_task("t"), "g")], RunSpec("run", attempts=2))
    assert got.rollout.failure is not None
    assert store.ids() == ["run/g/0"] and not list((store.path / "journal").iterdir())
