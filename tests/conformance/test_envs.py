"""Every registered palestra/* environment keeps Gymnasium's contract and ours."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import palestra.envs
from browsers import browser
from needs import need
from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvStateError

IDS = sorted(palestra.envs.ENVS)
INFO_KEYS = {"anchor", "state_digest", "valid_action", "timings"}


SERVICES = {"palestra/Web-v0": (browser, "Chromium and the extra `web`: tests/services/chromium.sh")}
"""What an environment cannot do without, and how to get it."""


def swept() -> list[Any]:
    """Every id; those that share a service are one group, so that it is started once."""
    return [pytest.param(i, marks=pytest.mark.xdist_group(i)) if i in SERVICES else i for i in IDS]


@pytest.fixture(params=swept())
def env_id(request: pytest.FixtureRequest) -> str:
    if request.param in SERVICES:
        found, what = SERVICES[request.param]
        need(found(), what)
    return str(request.param)


@pytest.fixture
def env(env_id: str) -> Iterator[TaskEnv]:
    made = gymnasium.make(env_id).unwrapped
    assert isinstance(made, TaskEnv)
    yield made
    made.close()


def actions(env: TaskEnv) -> list[str]:
    """Every tool without arguments, some nonsense, then the solution."""
    calls = [json.dumps({"name": name, "arguments": {}}) for name in env.toolbox]
    return [*calls, "", "nonsense", "{", *env.solution()]


def play(env: TaskEnv, seed: int) -> list[Any]:
    observation, info = env.reset(seed=seed)
    steps: list[Any] = [(observation, info["anchor"], info["state_digest"])]
    for action in actions(env):
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append((observation, reward, terminated, truncated, info["anchor"], info["state_digest"]))
        if terminated or truncated:
            break
    return steps


def test_every_palestra_id_is_swept() -> None:
    assert sorted(name for name in gymnasium.registry if name.startswith("palestra/")) == IDS


def test_check_env(env: TaskEnv) -> None:
    check_env(env, skip_render_check=True)


def test_equal_seeds_play_alike_in_two_environments(env_id: str, env: TaskEnv) -> None:
    other = gymnasium.make(env_id).unwrapped
    assert isinstance(other, TaskEnv)
    assert play(env, 5) == play(other, 5) == play(env, 5)


def test_seeds_choose_among_tasks(env: TaskEnv) -> None:
    assert len({env.reset(seed=seed)[0] for seed in range(8)}) > 1


def test_the_contract_of_a_step(env: TaskEnv) -> None:
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation) and info.keys() >= INFO_KEYS
    for action in actions(env)[:5]:
        assert env.action_space.contains(action)
        observation, reward, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(observation) and info.keys() >= INFO_KEYS
        assert type(reward) is float and type(terminated) is bool and type(truncated) is bool
        assert len(info["state_digest"]) == 64 and info["timings"]["step"] >= 0
        if terminated or truncated:
            break


def test_the_solution_is_rewarded_and_ends_the_episode(env: TaskEnv) -> None:
    env.reset(seed=0)
    *_, last = [env.step(action) for action in env.solution()]
    assert last[1:4] == (1.0, True, False)
    with pytest.raises(EnvStateError):
        env.step("")


def test_a_score_asked_for_early_is_not_kept(env: TaskEnv) -> None:
    env.reset(seed=0)
    assert env.score().value == 0.0
    *_, last = [env.step(action) for action in env.solution()]
    assert last[1] == env.score().value == 1.0


def test_truncation_at_the_turn_budget_then_reset(env: TaskEnv) -> None:
    env.reset(seed=0)
    ends = [env.step("nonsense")[2:4] for _ in range(env.task.budget.turns)]
    assert ends == [(False, False)] * (len(ends) - 1) + [(False, True)]
    assert env.score().value == 0.0
    env.reset(seed=1)
    assert env.step("nonsense")[2:4] == (False, False)


def test_snapshot_and_restore_are_equivalent(env: TaskEnv) -> None:
    env.reset(seed=2)
    env.step(actions(env)[0])
    kept = env.snapshot()
    rest = actions(env)[1:]
    first = [env.step(action)[:4] for action in rest]
    env.restore(kept)
    assert [env.step(action)[:4] for action in rest] == first
    env.restore(kept)
    assert [env.step(action)[:4] for action in rest] == first


def test_pickles_before_reset_and_in_mid_episode(env: TaskEnv) -> None:
    assert play(pickle.loads(pickle.dumps(env)), 3) == play(env, 3)
    env.reset(seed=3)
    env.step(actions(env)[0])
    again = pickle.loads(pickle.dumps(env))
    assert again.step("nonsense")[4]["state_digest"] == env.step("nonsense")[4]["state_digest"]


def test_close_twice_and_use_again(env: TaskEnv) -> None:
    env.reset(seed=0)
    env.step(actions(env)[0])
    env.close()
    env.close()
    assert play(env, 0) == play(env, 0)


def test_tools_are_described_briefly(env: TaskEnv) -> None:
    for definition in env.tools:
        function = definition["function"]
        assert definition["type"] == "function" and 0 < len(function["description"]) < 100
        assert function["parameters"]["type"] == "object"


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_sync_vector(env_id: str, mode: AutoresetMode) -> None:
    vector = SyncVectorEnv([lambda: gymnasium.make(env_id)] * 2, autoreset_mode=mode)
    first = vector.reset(seed=[0, 1])[0]
    assert all(len(text) > 5 for text in first) and first[0] != first[1]
    observations, rewards, *_ = vector.step(("nonsense", "{"))
    assert all(text.startswith("error") for text in observations) and list(rewards) == [0.0, 0.0]
    vector.close()


def test_async_vector_without_shared_memory_carries_text(env_id: str) -> None:
    vector = AsyncVectorEnv([lambda: gymnasium.make(env_id)] * 2, shared_memory=False)
    single = gymnasium.make(env_id)
    assert vector.reset(seed=[0, 1])[0][0] == single.reset(seed=0)[0]
    assert vector.step(("nonsense", "{"))[0][0] == single.step("nonsense")[0]
    vector.close()


class TextEnv(gymnasium.Env[str, np.int64]):
    """The least environment that observes text, with Gymnasium's own space."""

    observation_space = gymnasium.spaces.Text(max_length=64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "hello", {}


def test_shared_memory_still_loses_text() -> None:
    """When this fails, Gymnasium has mended it, and the warning in the docstring of `Unicode` can go."""
    vector = AsyncVectorEnv([TextEnv] * 2, shared_memory=True)
    observations, _ = vector.reset()
    vector.close()
    assert observations == ("0" * 64, "0" * 64)


def test_shared_memory_is_refused_for_our_space(env_id: str) -> None:
    with pytest.raises(Exception, match="shared_memory|shared memory"):
        AsyncVectorEnv([lambda: gymnasium.make(env_id)] * 2, shared_memory=True)
