"""Snapshots of the web world: played again, and checked."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable

import pytest

from palestra.envs.errors import EnvSetupError
from palestra.envs.web.env import WebEnv
from palestra.envs.web.host import host
from palestra.tasks.registry import find_task
from palestra.tasks.task import Task
from palestra.tasks.web.actions import act as call
from palestra.tasks.web.miniwob import make

Start = Callable[[Task], WebEnv]


def test_a_snapshot_is_played_again_and_checked(start: Start) -> None:
    env = start(find_task("web-sites", "shop/add-to-cart/000"))
    gold = env.solution()
    for action in gold[:3]:
        env.step(action)
    kept = env.snapshot()
    first = [env.step(action)[:4] for action in gold[3:]]
    env.restore(pickle.loads(pickle.dumps(kept)))
    assert [env.step(action)[:4] for action in gold[3:]] == first and first[-1][1] == 1.0


def test_what_was_typed_into_a_page_before_is_there_after_going_back(start: Start) -> None:
    env = start(find_task("web-sites", "forum/reply/000"))
    env.step(call("goto", url="http://forum.test/search"))
    env.step(call("fill", target='searchbox "Posts of"', text="lamp"))
    env.step(call("goto", url="http://forum.test/"))
    kept = env.snapshot()
    first = env.step("back")
    env.restore(kept)
    assert env.step("back")[0] == first[0] and "lamp" in first[0]


def test_a_page_of_miniwob_is_played_again(start: Start) -> None:
    env = start(make("click-button-sequence", "test", 1))
    env.step(call("click", target='button "ONE"'))
    env.restore(env.snapshot())
    assert env.step(call("click", target='button "TWO"'))[1] == 1.0


def test_a_restored_episode_keeps_its_browser_to_itself(start: Start) -> None:
    env = start(find_task("web-sites", "shop/add-to-cart/000"))
    env.restore(env.snapshot())
    env.step("wait 10")
    gc.collect()
    host().run(host().close_idle(), 30)
    other = start(find_task("web-sites", "forum/reply/000"))
    assert other._session is not env._session and "shop" in env.step("wait 10")[0]


def test_a_snapshot_that_leads_elsewhere_is_refused(start: Start) -> None:
    env = start(find_task("web-sites", "shop/add-to-cart/000"))
    env.step("wait 10")
    kept = env.snapshot()
    lost = pickle.loads(pickle.dumps(kept).replace(kept.world.anchor.encode(), b"0" * 16))
    env.restore(lost)
    with pytest.raises(EnvSetupError, match="did not lead to the same state"):
        env.step("wait 10")
