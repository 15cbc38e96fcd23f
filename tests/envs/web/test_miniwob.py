"""MiniWoB++: every page plays, scripts solve many of them, and equal seeds look alike."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from browsers import browser
from needs import need
from palestra.envs.web import miniwob
from palestra.envs.web.env import WebEnv
from palestra.envs.web.miniwob_oracles import ORACLES
from palestra.tasks.errors import TaskParameterError
from palestra.tasks.registry import load_tasks
from palestra.tasks.task import Task
from palestra.tasks.web.miniwob import make, pages

Start = Callable[[Task], WebEnv]

SOLVED = sorted(ORACLES)
SAMPLED = sorted(set(SOLVED) - miniwob.FRESH)[::8]
"""Some pages for determinism; `benchmarks/web.py` takes all, over 50 steps."""


def play(env: WebEnv, task: Task, steps: int) -> list[str]:
    """Digests of what random actions show."""
    _, info = env.reset(options={"task": task})
    digests, rng = [info["state_digest"]], random.Random(task.id)
    for _ in range(steps):
        target = rng.choice([e.id for e in env.view.elements if e.id] or [1])
        action = rng.choice(
            [f"click {target}", f"fill {target} abc", "press Tab", f"hover {target}", "type xy"]
        )
        *_, terminated, truncated, info = env.step(action)
        digests.append(info["state_digest"])
        if terminated or truncated:
            _, info = env.reset(options={"task": task})
    return digests


def test_the_sets() -> None:
    need(browser(), "Chromium and the extra `web`: tests/services/chromium.sh")
    by_seed, by_page = load_tasks("miniwob"), load_tasks("miniwob-tasks")
    assert len(pages()) >= 130 and len(SOLVED) >= 50
    splits = [{t.data["miniwob"] for t in by_page.split(s)} for s in ("train", "dev", "test")]
    assert not splits[0] & splits[1] and not splits[0] & splits[2] and sum(map(len, splits)) == len(pages())
    seeds = [{t.data["seed"] for t in by_seed.split(s)} for s in ("train", "dev", "test")]
    assert not seeds[0] & seeds[1] and not seeds[0] & seeds[2]
    with pytest.raises(TaskParameterError, match="no page 'nothing'"):
        load_tasks("miniwob?only=nothing")


@pytest.mark.parametrize("page", SOLVED)
def test_the_scripted_solution_scores_1(start: Start, page: str) -> None:
    env = start(make(page, "test", 1))
    for seed in (1, 2, 3):
        env.reset(options={"task": make(page, "test", seed)})
        env._solve()
        assert env.score().value == 1.0, (seed, env.score().evidence)


@pytest.mark.slow
def test_every_page_plays_at_random(start: Start) -> None:
    env = start(make("click-test", "test", 0))
    for page in pages():
        assert len(play(env, make(page, "test", 5), 1)) == 2, page
        assert 0.0 <= (env.score().value or 0.0) <= 1.0


def test_a_page_that_was_played_before_looks_as_a_new_one(start: Start) -> None:
    used, fresh = start(make("click-test", "test", 0)), start(make("click-test", "test", 0))
    for page in SAMPLED:
        task = make(page, "test", 9)
        play(used, make(page, "test", 8), 10)
        assert play(used, task, 25) == play(fresh, task, 25), page


def test_a_drag_out_of_a_list_box_is_refused(start: Start) -> None:
    env = start(make("click-scroll-list", "test", 9))
    first, *_, last = [e.id for e in env.view.elements if e.role == "option"][:4]
    assert "has to end in it" in env.step(f"drag {first} 60,300")[0]
    env.step(f"drag {first} {last}")
    assert len([e for e in env.view.elements if "selected" in e.states]) == 4


def test_no_decay_by_time(start: Start) -> None:
    env = start(make("click-test", "test", 4))
    for _ in range(10):
        env.step("wait 10000")
    assert env.step('click "button \\"Click Me!\\""')[1] == 1.0


def test_the_policy_of_a_page_admits_its_own_scripts_alone() -> None:
    need(browser(), "Chromium and the extra `web`: tests/services/chromium.sh")
    found = miniwob.page("/miniwob/click-test.html")
    assert found is not None and "'unsafe-inline'" not in found[2].partition("script-src")[2]
    assert miniwob.page("/../../../../etc/passwd") is None and miniwob.page("/miniwob/none.html") is None
