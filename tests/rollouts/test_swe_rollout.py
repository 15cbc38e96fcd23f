"""A repository is repaired through the proxy by a scripted model, with tools and with bash alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

import swe
from palestra.rollouts.local import Local
from palestra.rollouts.runner import Job, RunSpec
from palestra.rollouts.testing import tool_call

Stage = Callable[..., Awaitable[Local]]

WITH_TOOLS = [
    tool_call("search", pattern="end < start"),
    tool_call("edit", path=swe.PATH, old="end < start", new="end <= start"),
    tool_call("shell", command="python3 -m pytest -q 2>&1 | tail -1 | cut -c1-9"),
    tool_call("submit", summary="empty intervals are dropped"),
]
BASH_ONLY = [
    "```bash\ngrep -n 'end < start' -r .\n```",
    f"```bash\nsed -i 's/end < start/end <= start/' {swe.PATH}\n```",
    "```bash\npython3 -m pytest -q 2>&1 | tail -1 | cut -c1-9\n```",
    "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```",
]


@pytest.mark.parametrize("replies", [WITH_TOOLS, BASH_ONLY], ids=["tools", "bash"])
async def test_every_step_has_its_call_and_its_anchor(stage: Stage, replies: list[str]) -> None:
    swe.machines()
    stack = await stage(replies)
    [got] = await stack.runner.run([Job(swe.task(), "g", 0)], RunSpec("run", seed=1))
    assert got.rollout.reward == 1.0, got.rollout
    assert [step.call for step in got.steps] == [0, 1, 2, 3]
    anchors = [step.anchor for step in got.steps]
    assert anchors[0] == anchors[1] != anchors[2] == anchors[3]
    assert got.steps[2].observation.startswith("36 passed")
