"""The lakes on which estimators are compared: what is seen, who shows the way, and which states recur."""

from __future__ import annotations

import random
from collections import Counter

import gymnasium
import pytest

import lakes
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.rollouts.harnesses import Demonstrator
from palestra.rollouts.local import local
from palestra.rollouts.runner import RunSpec, group_jobs
from palestra.training.decisions import decisions

MAP = ["SFFFF", "FHHHF", "FFFFF", "HHHFF", "FFFFG"]


def test_one_sees_ones_own_cell_and_the_four_beside_it() -> None:
    env = gymnasium.make("FrozenLake-v1", desc=MAP, disable_env_checker=True)
    assert lakes.surroundings(env, 0) == "0 0: left edge, down ice, right ice, up edge"
    assert lakes.surroundings(env, 11) == "2 1: left ice, down hole, right ice, up hole"
    assert lakes.surroundings(env, 23) == "4 3: left ice, down edge, right goal, up ice"


def test_the_first_thing_seen_says_what_to_do_and_is_no_other_state_than_coming_back() -> None:
    env = gymnasium.make(lakes.ENV_ID).unwrapped
    task = next(t for t in lakes.load().split("train") if t.data["gymnasium"]["kwargs"]["desc"][0][1] == "F")
    text, info = env.reset(options={"task": task})
    assert text.startswith("Walk over the ice to the goal.\n0 0: left edge")
    env.step('{"name": "act", "arguments": {"action": "right"}}')
    assert env.step('{"name": "act", "arguments": {"action": "left"}}')[-1]["anchor"] == info["anchor"]


def test_distances_go_around_holes() -> None:
    far = lakes.distances(MAP)
    assert (far[4, 4], far[0, 0], far[4, 0]) == (0, 8, 4)
    assert (1, 1) not in far


def test_lakes_that_are_looked_at_are_not_learned_on() -> None:
    tasks = lakes.load()
    maps = {
        s: {tuple(t.data["gymnasium"]["kwargs"]["desc"]) for t in tasks.split(s)} for s in ("train", "test")
    }
    assert len(maps["train"]) > 1500 and len(maps["test"]) == 100
    assert not maps["train"] & maps["test"]


@pytest.mark.parametrize("care", [1.0, 0.45])
async def test_rollouts_of_a_lake_meet_in_the_same_states(
    care: float, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that there is nothing for GiGPO and HGPO to compare."""
    monkeypatch.setattr(lakes, "CARE", care)
    rendering = Rendering.load(make_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    seeds = iter(range(1000))
    demonstrator = Demonstrator(lambda world: lakes.Stroller(next(seeds)).play(world))
    tasks = random.Random(0).sample(list(lakes.load().split("train")), 4)
    async with local(ScriptedEngine(rendering, demonstrator.reply), rendering, harness=demonstrator) as stack:
        played = await stack.runner.run(group_jobs(tasks, 8), RunSpec("r", "train", 0))
    assert all(t.rollout.failure is None for t in played)
    scores = [t.rollout.reward for t in played]
    assert set(scores) == ({1.0} if care == 1.0 else {0.0, 1.0})
    table = decisions(played).table
    states = Counter(zip(table.group.tolist(), table.anchor.tolist(), strict=True))
    assert len(states) <= 4 * lakes.SIZE**2
    assert sum(n for n in states.values() if n > 1) > 0.8 * len(table)
