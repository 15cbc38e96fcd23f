"""Snapshots of the web world: put back where that is all, played again where it is not, and checked."""

from __future__ import annotations

import dataclasses
import gc
import pickle
from collections.abc import Callable

import pytest

from hostile_site import hostile_task
from palestra.envs.env import Snapshot
from palestra.envs.errors import EnvSetupError
from palestra.envs.web.env import WebEnv
from palestra.envs.web.host import host
from palestra.tasks.registry import find_task
from palestra.tasks.task import Task
from palestra.tasks.web.actions import act as call
from palestra.tasks.web.miniwob import make

Start = Callable[[Task], WebEnv]


def without(kept: Snapshot) -> Snapshot:
    """The same, with nothing but its actions to go by."""
    return dataclasses.replace(kept, world=dataclasses.replace(kept.world, kept=None))


def lost(kept: Snapshot) -> Snapshot:
    """The same, with another anchor."""
    return dataclasses.replace(kept, world=dataclasses.replace(kept.world, anchor="0" * 16))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many actions were played again, each time."""
    found: list[int] = []
    original = WebEnv._play_again

    def counting(env: WebEnv, wanted: object) -> None:
        found.append(len(wanted.actions))  # type: ignore[attr-defined]
        original(env, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(WebEnv, "_play_again", counting)
    return found


@pytest.mark.parametrize("again", [False, True])
def test_a_snapshot_leads_to_the_same_state(start: Start, played: list[int], again: bool) -> None:
    env = start(find_task("web-sites", "shop/add-to-cart/000"))
    gold = env.solution()
    for action in gold[:2]:
        env.step(action)
    kept = without(env.snapshot()) if again else env.snapshot()
    first = [env.step(action) for action in gold[2:]]
    env.restore(pickle.loads(pickle.dumps(kept)))
    second = [env.step(action) for action in gold[2:]]
    assert [s[:4] for s in first] == [s[:4] for s in second] and first[-1][1] == 1.0
    assert [s[4]["state_digest"] for s in first] == [s[4]["state_digest"] for s in second]
    assert played == ([2] if again else [])


def test_the_history_is_there_again(start: Start, played: list[int]) -> None:
    env = start(find_task("web-sites", "forum/reply/000"))
    links = [e for e in env.view.elements if e.role == "link"]
    env.step(call("click", target=links[0].id))
    env.step(call("goto", url="http://forum.test/search"))
    env.step("back")
    kept = env.snapshot()
    first = [env.step(action)[0] for action in ("forward", "back", "back", "back")]
    env.restore(kept)
    assert [env.step(action)[0] for action in ("forward", "back", "back", "back")] == first
    assert played == [] and "no page to go back to" in first[-1]


@pytest.mark.parametrize(
    "body",
    [
        "<script>let n = 0</script><button>x</button>",
        "<button onclick='this.title = 1'>x</button>",
        "<input><button>x</button>",
        "<form method=post action=/win><button>x</button></form>",
        "<div style='height: 3000px'></div><button>x</button>",
    ],
    ids=["script", "handler", "typed", "posted", "scrolled"],
)
def test_where_more_belongs_to_the_state_the_actions_are_played_again(
    start: Start, played: list[int], body: str
) -> None:
    env = start(hostile_task(body))
    env.step(call("fill", target='textbox ""', text="half"))
    env.step(call("click", target='button "x"'))
    kept = env.snapshot()
    first = env.step("wait 10")[4]["state_digest"]
    env.restore(kept)
    assert env.step("wait 10")[4]["state_digest"] == first and played == [2]


def test_a_page_of_miniwob_is_played_again(start: Start, played: list[int]) -> None:
    env = start(make("click-button-sequence", "test", 1))
    env.step(call("click", target='button "ONE"'))
    env.restore(env.snapshot())
    assert env.step(call("click", target='button "TWO"'))[1] == 1.0 and played == [1]


@pytest.mark.parametrize("again", [False, True])
def test_a_restored_episode_keeps_its_browser_to_itself(start: Start, again: bool) -> None:
    env = start(find_task("web-sites", "shop/add-to-cart/000"))
    env.restore(without(env.snapshot()) if again else env.snapshot())
    env.step("wait 10")
    gc.collect()
    host().run(host().close_idle(), 30)
    other = start(find_task("web-sites", "forum/reply/000"))
    assert other._session is not env._session and "shop" in env.step("wait 10")[0]


def test_a_snapshot_that_leads_elsewhere_is_refused(start: Start) -> None:
    env = start(find_task("web-sites", "shop/add-to-cart/000"))
    env.step("wait 10")
    env.restore(lost(env.snapshot()))
    with pytest.raises(EnvSetupError, match="did not lead to the same state"):
        env.step("wait 10")
