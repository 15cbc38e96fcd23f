"""What the recorder counts: tokens of the path that a bridge took over are cached, those to </think> reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from palestra.harness_proxy.rendering import Rendering
from palestra.trajectories.exports.atif import to_atif
from palestra.trajectories.model import Message, Rollout, Score, Trajectory

SCORED = Rollout("r", "run", "g", "t", 0, 1, "train", "loop", "1", "tokens", 0, score=Score(1.0, True))


async def test_the_path_of_a_bridge_is_cached(bench: Any) -> None:
    b = await bench(["One.", "Two."])
    session = b.open()
    history: list[Any] = [{"role": "user", "content": "Hi"}]
    first = (await b.ask(session, history)).json
    history += [first["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    second = (await b.ask(session, history)).json
    cached = [u["usage"]["prompt_tokens_details"]["cached_tokens"] for u in (first, second)]
    assert cached == [0, first["usage"]["total_tokens"]]
    assert cached[1] < second["usage"]["prompt_tokens"]
    recording = b.close(session)
    document = to_atif(Trajectory(SCORED, recording.nodes, recording.calls))
    steps = [step for step in document["steps"] if step["source"] == "agent"]
    assert [step["metrics"]["cached_tokens"] for step in steps] == cached


@pytest.mark.parametrize("script", ["<think>\nHm, é.\n</think>\n\nYes.", "Yes."])
async def test_reasoning_is_counted(bench: Any, model_dir: Any, script: str) -> None:
    rendering = Rendering.load(model_dir, enable_thinking=True)
    b = await bench([script], rendering=rendering)
    session = b.open()
    usage = (await b.ask(session, [{"role": "user", "content": "Hi"}])).json["usage"]
    counted = usage["completion_tokens_details"]["reasoning_tokens"]
    head, end, _ = script.partition("</think>")
    assert counted == (len(rendering.encode(head + end)) if end else 0)
    b.close(session)


def test_a_message_without_reasoning_has_none(rendering: Rendering) -> None:
    assert rendering.reasoning_tokens(Message("assistant", "a"), [1, 2]) == 0
    assert rendering.reasoning_tokens(Message("assistant", "a", "b"), [1, 2]) == 2
