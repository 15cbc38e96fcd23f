"""The scripted engine: what users' tests rely on."""

from typing import Any

import pytest

from palestra.harness_proxy.engines.base import EngineError, EngineUnavailableError, PromptTooLongError
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.trajectories.model import Sampling

SAMPLING = Sampling(max_tokens=64)


async def test_texts_end_with_the_stop_token_and_ids_are_taken_as_they_are(rendering: Rendering) -> None:
    engine = ScriptedEngine(rendering, ["Hi.", [5, 6]], version=2)
    first, second = [await engine.generate([1, 2], SAMPLING) for _ in range(2)]
    assert first.token_ids == [*rendering.encode("Hi."), rendering.stop_token_ids[0]]
    assert second.token_ids == [5, 6]
    assert first.versions == ((0, 2),)
    assert [c.prompt_ids for c in engine.calls] == [[1, 2], [1, 2]]


async def test_each_session_plays_from_the_start(rendering: Rendering) -> None:
    engine = ScriptedEngine(rendering, ["One.", "Two."])
    replies = [await engine.generate([1], SAMPLING, session=s) for s in ("a", "b", "a")]
    assert [rendering.decode(r.token_ids[:-1]) for r in replies] == ["One.", "One.", "Two."]


async def test_scripts_by_session_and_by_function(rendering: Rendering) -> None:
    by_session = ScriptedEngine(rendering, {"a": ["For a."]})
    by_function = ScriptedEngine(rendering, lambda prompt, session: [len(prompt)])
    assert (await by_session.generate([1], SAMPLING, session="a")).token_ids
    assert (await by_function.generate([1, 2, 3], SAMPLING)).token_ids == [3]


async def test_logprobs_are_finite_negative_and_repeatable(rendering: Rendering) -> None:
    engine = ScriptedEngine(rendering, lambda prompt, session: "The same.")
    first, second = [await engine.generate([1], SAMPLING) for _ in range(2)]
    assert first == second
    assert len(first.logprobs) == len(first.token_ids) and all(-4 < p < 0 for p in first.logprobs)


async def test_replies_are_cut_at_max_tokens(rendering: Rendering) -> None:
    cut = await ScriptedEngine(rendering, ["A long reply."]).generate([1], Sampling(max_tokens=3))
    assert (len(cut.token_ids), len(cut.logprobs), cut.finish_reason) == (3, 3, "length")


@pytest.mark.parametrize("error", [EngineUnavailableError("busy"), EngineError("broken"), ValueError("bug")])
async def test_errors_are_raised_and_the_script_goes_on(rendering: Rendering, error: Any) -> None:
    engine = ScriptedEngine(rendering, [error, "Fine."])
    with pytest.raises(type(error)):
        await engine.generate([1], SAMPLING)
    assert (await engine.generate([1], SAMPLING)).finish_reason == "stop"
    assert [c.generation is None for c in engine.calls] == [True, False]


async def test_an_exhausted_script_and_a_long_prompt_are_errors(rendering: Rendering) -> None:
    engine = ScriptedEngine(rendering, [], context_tokens=4)
    with pytest.raises(EngineError, match="has 0 replies"):
        await engine.generate([1], SAMPLING)
    with pytest.raises(PromptTooLongError, match="4 tokens, the prompt has 5"):
        await engine.generate([1] * 5, SAMPLING)
    assert (await engine.probe()).context_tokens == 4
    await engine.aclose()
