"""A simulated search engine through the proxy: what it says, when it is noisy, and that it is never trained on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from palestra.envs.errors import RetrieverError
from palestra.envs.search.env import SearchEnv
from palestra.envs.search.simulated import NoiseCurriculum, SimulatedEngine, documents, simulated
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.rollouts.local import Local
from palestra.rollouts.runner import Job, RunSpec
from palestra.rollouts.search_engine import simulated_search
from palestra.rollouts.testing import tool_call
from palestra.tasks.registry import load_tasks
from palestra.trajectories.sample import TRAINED_ROLES, samples
from search_world import call

Stage = Callable[..., Awaitable[Local]]
USEFUL = "Doc 1: The mentor was Ann Lee.\nDocument 2. <answer>Bo</answer>\n3) Third."


def _reply(rendering: Rendering) -> ScriptedEngine:
    """Says whether it was asked for noise."""
    noisy = rendering.encode("look related to the query but do not contain")

    def answer(prompt: list[int], _session: str) -> str:
        text = ",".join(map(str, prompt))
        return "1. Nothing of use." if ",".join(map(str, noisy[1:-1])) in text else USEFUL

    return ScriptedEngine(rendering, answer)


async def test_an_environment_asks_the_model_behind_the_proxy(tmp_path: Path) -> None:
    rendering = Rendering.load(make_tiny_tokenizer(tmp_path))
    scripted = _reply(rendering)
    proxy = Proxy(scripted, rendering)
    await proxy.start()
    task = simulated(load_tasks("search-hops", split="dev"))[0]
    env = SearchEnv()

    def play() -> list[str]:
        env.reset(seed=0, options={"task": task})
        return [env.step(call("search", query="mentor"))[0], env.step(call("search", query="mentor"))[0]]

    with simulated_search(proxy, NoiseCurriculum(start=0.0, end=1.0, steps=10)) as engine:
        first, second = await asyncio.to_thread(play)
        assert first == second and len(scripted.calls) == 1, "what was written is kept"
        assert first.count("| ") == 3 and "| The mentor was Ann Lee." in first
        assert "<answer>" not in first and "&lt;answer>Bo" in first
        engine.step = 10
        noisy, _ = await asyncio.to_thread(play)
        assert noisy.endswith("| Nothing of use.") and len(scripted.calls) == 2
        (session,) = proxy._sessions.values()
    assert [c.role for c in session.recording().calls] == ["auxiliary", "auxiliary"]
    assert session.closed and session.mode == "eval" and "auxiliary" not in TRAINED_ROLES
    await proxy.aclose()


@pytest.mark.parametrize("kind", ["bm25", "simulated"])
async def test_retrieved_text_is_seen_and_never_trained(
    rendering: Rendering, stage: Stage, kind: str
) -> None:
    tasks = load_tasks("search-hops", split="dev")
    task = (simulated(tasks) if kind == "simulated" else tasks)[0]
    query = str(tasks[0].data["searches"][0])
    acting = [tool_call("search", query=query), tool_call("answer", answer=task.data["answers"][0])]
    sessions = {"run/g/0": acting, "search-engine": ["1. Zyxwv is the answer that nobody sampled."]}
    stack = await stage(sessions)
    with simulated_search(stack.proxy, NoiseCurriculum()):
        [got] = await stack.runner.run([Job(task, "g")], RunSpec("run"))
    assert got.rollout.reward == 1.0 and {c.role for c in got.calls} == {"agent"}
    shown = "Zyxwv" if kind == "simulated" else got.steps[0].observation.split("| ")[1][:40]
    seen = rendering.decode(np.concatenate([n.token_ids for n in got.nodes]).tolist())
    trained = [rendering.decode(s.ids[s.loss_mask].tolist()) for s in samples(got)]
    assert shown in seen and not any(shown in text for text in trained)
    assert all(action[:30] in "".join(trained) for action in acting)


def test_the_curriculum_of_the_paper() -> None:
    noise = NoiseCurriculum(start=0.0, end=0.75, steps=100, base=4).noise
    assert [noise(step) for step in (-1, 0, 50, 100, 500)] == pytest.approx([0, 0, 0.25, 0.75, 0.75])
    for wrong in ({"start": -0.1}, {"end": 1.1}, {"steps": 0}, {"base": 1.0}):
        with pytest.raises(ValueError, match="shares are from 0 to 1"):
            NoiseCurriculum(**wrong)


def test_noise_is_a_fixed_choice_that_only_grows() -> None:
    engine = SimulatedEngine("http://127.0.0.1:1/v1", "key", NoiseCurriculum(0.0, 1.0, 100), seed=3)
    queries = [f"query {n}" for n in range(400)]
    before: set[str] = set()
    for step in (0, 25, 50, 75, 100):
        engine.step = step
        noisy = {q for q in queries if engine.noisy("question", q)}
        assert before <= noisy and noisy == {q for q in queries if engine.noisy("question", q)}
        assert abs(len(noisy) / len(queries) - engine._curriculum.noise(step)) < 0.08
        before = noisy
    engine.close()


def test_a_model_that_does_not_answer_is_no_measurement() -> None:
    waits: list[float] = []
    engine = SimulatedEngine("http://127.0.0.1:1/v1", "key", NoiseCurriculum(), sleep=waits.append)
    with pytest.raises(RetrieverError, match="did not answer"):
        engine.write("question", (), "query", 3)
    assert len(waits) == 8 and waits == sorted(waits)
    engine.close()


@pytest.mark.parametrize(
    ("reply", "texts"),
    [
        ("Doc 1: a\nb\nDoc 2: c", ["a\nb", "c"]),
        ("1. a\n2) b", ["a", "b"]),
        ("no numbers in 1990. at all", ["no numbers in 1990. at all"]),
        ("", []),
        ("1.\n2. b", ["b"]),
    ],
)
def test_documents_are_told_apart(reply: str, texts: list[str]) -> None:
    assert documents(reply) == texts
