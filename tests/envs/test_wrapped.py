"""Gymnasium environments played in words."""

from __future__ import annotations

import importlib.util
import json
import pickle
from typing import Any

import gymnasium
import pytest

from needs import need
from palestra.envs import from_gymnasium
from palestra.envs.errors import EnvSetupError, EnvStateError
from palestra.envs.observation_text import plain
from palestra.envs.validate import validate_task
from palestra.envs.wrapped import GymnasiumEnv
from palestra.tasks.errors import TaskParameterError
from palestra.tasks.registry import load_tasks

TAXI = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gymnasium.registry)
FOUR: dict[str, dict[str, Any]] = {
    "FrozenLake-v1": {"is_slippery": False},
    TAXI: {},
    "Blackjack-v1": {},
    "minigrid:MiniGrid-DoorKey-5x5-v0": {},
}


def act(name: str) -> str:
    return json.dumps({"name": "act", "arguments": {"action": name}})


@pytest.fixture(autouse=True)
def installed() -> None:
    need(importlib.util.find_spec("minigrid"), "minigrid: pip install 'palestra[worlds]'")


def solved(name: str) -> GymnasiumEnv:
    """At the start of the first task of `name` that has a solution."""
    env = from_gymnasium(name, seeds=range(8), **FOUR[name])
    for seed in range(8):
        env.reset(seed=seed)
        if env.solution():
            return env
    raise AssertionError(f"no task of {name} has a solution")


@pytest.mark.parametrize("name", FOUR)
def test_the_solution_ends_the_episode_with_1(name: str) -> None:
    env = solved(name)
    *_, last = [env.step(action) for action in env.solution()]
    assert last[1:4] == (1.0, True, False)
    assert env.score().parts["success"] == 1.0 and env.score().parts["return"] > 0


@pytest.mark.parametrize("name", FOUR)
def test_a_fork_in_mid_episode_plays_on_as_the_original(name: str) -> None:
    env = solved(name)
    first, *rest = env.solution()
    env.step(first)
    kept = env.snapshot()
    played = [env.step(action)[:4] for action in rest]
    env.restore(kept)
    assert [env.step(action)[:4] for action in rest] == played
    other = from_gymnasium(name, **FOUR[name])
    other.restore(pickle.loads(pickle.dumps(kept)))
    assert [other.step(action)[:4] for action in rest] == played


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("FrozenLake-v1", "[S]FFF"),
        (TAXI, "The taxi is at row"),
        ("Blackjack-v1", "the dealer shows"),
        ("minigrid:MiniGrid-DoorKey-5x5-v0", "Mission: use the key"),
    ],
)
def test_what_is_shown(name: str, shows: str) -> None:
    observation, _ = from_gymnasium(name, **FOUR[name]).reset(seed=0)
    assert shows in observation and "Actions: " in observation and "\x1b" not in observation


def test_a_bare_name_is_an_action_and_another_is_answered() -> None:
    env = from_gymnasium("FrozenLake-v1", is_slippery=False)
    start = env.reset(seed=0)[1]["anchor"]
    observation, *_, info = env.step("fly")
    assert (
        observation.startswith("error: there is no action 'fly'; the actions are left,")
        and info["anchor"] == start
    )
    assert "[F]" in env.step(" Down ")[0]
    assert env.step(act("up"))[4]["anchor"] == start


def test_the_limit_of_the_environment_truncates() -> None:
    env = from_gymnasium("FrozenLake-v1", is_slippery=False, max_episode_steps=2)
    env.reset(seed=0)
    assert [env.step("left")[2:4] for _ in range(2)] == [(False, False), (False, True)]
    assert env.score().value == 0.0


def test_the_return_may_be_the_score() -> None:
    env = from_gymnasium(TAXI, score="return")
    env.reset(seed=0)
    env.step("pickup")
    assert env.score().value == -10.0


@pytest.mark.parametrize("task", load_tasks("frozen-lake?train=3&dev=1&test=1"), ids=lambda t: t.id)
def test_frozen_lakes_are_valid_tasks(task: Any) -> None:
    report = validate_task(task)
    assert report.passed, report


def test_frozen_lakes_of_the_test_split_are_not_seen_in_training() -> None:
    tasks = load_tasks("frozen-lake?train=200&test=50")
    maps = {
        split: {str(t.data["gymnasium"]["kwargs"]) for t in tasks.split(split)} for split in ("train", "test")
    }
    assert len(maps["test"]) > 40 and not maps["train"] & maps["test"]


def test_a_set_of_seeds_by_name() -> None:
    tasks = load_tasks("gymnasium?id=Blackjack-v1&train=2&dev=1&test=1")
    assert [t.data["gymnasium"]["seed"] for t in tasks] == [0, 1, 1_000_000, 2_000_000]
    with pytest.raises(TaskParameterError, match="id"):
        load_tasks("gymnasium")


@pytest.mark.parametrize("name", ["NoSuch-v0", "no_such_package:NoSuch-v0"])
def test_an_unknown_environment_is_refused(name: str) -> None:
    with pytest.raises((EnvSetupError, ImportError), match="cannot be made|No module"):
        from_gymnasium(name)


class _Weights(gymnasium.Env[Any, Any]):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))
    action_space = gymnasium.spaces.Box(0.0, 1.0, (2,))


class _Echo(gymnasium.Env[str, str]):
    """Repeats text; its memory is not seeded, so it cannot be repeated after `unlike()`."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(100, charset="abc ")
    prefix = ""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "say something", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return f"{self.prefix}{action}", float(action == "abc"), action == "abc", False, {}


@pytest.fixture
def registered() -> Any:
    gymnasium.register("palestra-testing/Weights-v0", lambda **_: _Weights())
    gymnasium.register("palestra-testing/Echo-v0", lambda **_: _Echo())
    yield
    del gymnasium.registry["palestra-testing/Weights-v0"], gymnasium.registry["palestra-testing/Echo-v0"]


def test_continuous_actions_are_refused(registered: Any) -> None:
    with pytest.raises(EnvSetupError, match="only Discrete and text actions"):
        from_gymnasium("palestra-testing/Weights-v0")


def test_text_actions_are_passed_on_as_they_are(registered: Any) -> None:
    env = from_gymnasium("palestra-testing/Echo-v0", seeds=[0])
    assert env.reset(seed=0)[0] == "Play palestra-testing/Echo-v0.\nAnswer with text.\n\nsay something"
    assert env.step("a b")[0] == "a b"
    assert env.step("not in the charset")[0].startswith("error: the environment does not take this text")
    assert env.step(act("abc"))[1:3] == (1.0, True)


def test_a_world_that_does_not_repeat_itself_is_found_out(
    registered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = from_gymnasium("palestra-testing/Echo-v0", seeds=[0])
    env.reset(seed=0)
    env.step("a")
    kept = env.snapshot()
    env.step("b")
    env.restore(kept)
    monkeypatch.setattr(_Echo, "prefix", "changed ")
    with pytest.raises(EnvStateError, match="cannot be restored: after the same 1 moves"):
        env.step("b")


def test_one_environment_does_not_move_another() -> None:
    one, two = (from_gymnasium("FrozenLake-v1", is_slippery=False) for _ in range(2))
    one.reset(seed=0), two.reset(seed=0)
    one.step("down")
    assert "[F]" in one.step("down")[0] and two.step("left")[0].startswith("[S]")


def test_terminal_colours_become_brackets() -> None:
    assert plain("  (Down)\n\x1b[41mS\x1b[0mF\x1b[34;1mR\x1b[0m\n") == "[S]F<R>"
