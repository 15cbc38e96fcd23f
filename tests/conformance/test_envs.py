"""Every registered palestra/* environment keeps Gymnasium's contract and ours."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp.client.client import Client
from websockets.asyncio.client import connect

import palestra.envs
import swe
from browsers import browser
from needs import need
from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvStateError
from serving import serving
from small_worlds import options

IDS = sorted(palestra.envs.ENVS)
SLOW = {"palestra/ScienceWorld-v0"}
INFO_KEYS = {"anchor", "state_digest", "valid_action", "timings"}


def chromium() -> None:
    need(browser(), "Chromium and the extra `web`: tests/services/chromium.sh")


NEEDS = {"palestra/Swe-v0": swe.machines, "palestra/Web-v0": chromium}
"""What an environment cannot do without, by its id; called before its tests."""


def swept() -> list[Any]:
    """Every id; those that share a service or a Java machine are one group, so that it is started once."""
    slow = {i: [pytest.mark.slow] if i in SLOW else [] for i in IDS}
    alone = {i: [pytest.mark.xdist_group(i)] if i in SLOW or i in NEEDS else [] for i in IDS}
    return [pytest.param(i, marks=[*slow[i], *alone[i]]) for i in IDS]


@pytest.fixture(params=swept())
def env_id(request: pytest.FixtureRequest) -> str:
    NEEDS.get(request.param, lambda: None)()
    return str(request.param)


def make(env_id: str) -> gymnasium.Env[Any, Any]:
    return gymnasium.make(env_id, **options(env_id))


@pytest.fixture
def new(env_id: str) -> Iterator[Callable[[], TaskEnv]]:
    """Makes environments, which are closed after the test."""
    opened: list[TaskEnv] = []

    def one() -> TaskEnv:
        made = make(env_id).unwrapped
        assert isinstance(made, TaskEnv)
        opened.append(made)
        return made

    yield one
    for each in opened:
        each.close()


@pytest.fixture
def env(new: Callable[[], TaskEnv]) -> TaskEnv:
    return new()


def any_action(env: TaskEnv) -> st.SearchStrategy[str]:
    """Text, and calls of its own tools and of others, with arguments that they know and that they do not."""
    known = {name for t in env.tools for name in t["function"]["parameters"].get("properties", {})}
    values = st.text(max_size=30) | st.integers() | st.none() | st.lists(st.text(max_size=5), max_size=2)
    return st.text(max_size=60) | st.builds(
        lambda name, arguments: json.dumps({"name": name, "arguments": arguments}),
        st.sampled_from([*env.toolbox, "no_such_tool"]),
        st.dictionaries(st.sampled_from([*sorted(known), "x"]), values, max_size=2),
    )


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


def test_equal_seeds_play_alike_in_two_environments(new: Callable[[], TaskEnv], env: TaskEnv) -> None:
    assert play(env, 5) == play(new(), 5) == play(env, 5)


def test_equal_seeds_play_alike_in_every_process() -> None:
    """Whatever the hashes of strings are there; of every world that needs no service and no Java machine."""
    cheap = [i for i in IDS if i not in NEEDS and i not in SLOW]
    script = "import sys, test_envs\nfor i in sys.argv[1:]: print(test_envs.played(i))"
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-c", script, *cheap]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [played(i) for i in cheap]


def played(env_id: str) -> str:
    with closing(make(env_id).unwrapped) as env:
        assert isinstance(env, TaskEnv)
        return f"{env_id} {play(env, 5)!r}"


def test_what_happens_in_one_environment_stays_there(new: Callable[[], TaskEnv], env: TaskEnv) -> None:
    other = new()
    env.reset(seed=6)
    *most, last = env.solution()
    expected = [env.step(action)[:4] for action in (*most, last)]
    env.reset(seed=6), other.reset(seed=6)
    found = []
    for action in most:
        found.append(env.step(action)[:4])
        other.step("nonsense")
    assert [*found, env.step(last)[:4]] == expected


def test_an_anchor_names_the_same_place_whenever_it_is_reached(
    new: Callable[[], TaskEnv], env: TaskEnv
) -> None:
    other = new()
    anchors = []
    for one in (env, other, env):
        anchors.append([one.reset(seed=7)[1]["anchor"]])
        anchors[-1] += [one.step(action)[4]["anchor"] for action in one.solution()]
    assert anchors[0] == anchors[1] == anchors[2] and len(set(anchors[0])) > 1


def test_any_text_is_an_action(env: TaskEnv) -> None:
    """Never an exception, always text; and the same text for the same action in the same state."""

    @settings(max_examples=10 if env.spec is None or env.spec.id in SLOW else 60, deadline=None)
    @given(st.lists(any_action(env), min_size=1, max_size=3))
    def fuzz(texts: list[str]) -> None:
        seen: list[Any] = []
        for _ in range(2):
            env.reset(seed=0)
            seen.append([])
            for text in texts:
                observation, reward, terminated, truncated, info = env.step(text)
                observation.encode()
                assert math.isfinite(reward) and env.observation_space.contains(observation)
                seen[-1].append(
                    (observation, reward, terminated, truncated, info["anchor"], info["state_digest"])
                )
                if terminated or truncated:
                    break
        assert seen[0] == seen[1]

    fuzz()


@pytest.mark.parametrize("way", ["mcp", "websocket"])
async def test_a_service_plays_like_the_environment(env_id: str, env: TaskEnv, way: str) -> None:
    tasks = options(env_id)["tasks"]
    env.reset(seed=0, options={"task": tasks[0]})
    calls = [json.loads(action) for action in env.solution()[:3]]
    expected = [env.step(json.dumps(c))[0] for c in calls]
    async with serving(env_id, tasks, task_id=tasks[0].id) as url:
        assert await (_over_mcp if way == "mcp" else _over_websocket)(url, tasks[0].id, calls) == expected


async def _over_mcp(url: str, _task_id: str, calls: list[dict[str, Any]]) -> list[str]:
    async with Client(f"{url}/mcp", read_timeout_seconds=120) as client:
        results = [await client.call_tool(c["name"], c["arguments"]) for c in calls]
    return [str(r.content[0].text) for r in results]  # type: ignore[union-attr]


async def _over_websocket(url: str, task_id: str, calls: list[dict[str, Any]]) -> list[str]:
    async with connect(f"{url.replace('http', 'ws')}/ws") as socket:
        messages = [
            {"type": "reset", "data": {"task": task_id}},
            *({"type": "step", "data": c} for c in calls),
        ]
        answers = []
        for message in messages:
            await socket.send(json.dumps(message))
            answers.append(json.loads(await socket.recv())["data"]["observation"]["text"])
    return answers[1:]


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
    rest = actions(env)[1 : env.task.budget.turns]
    first = [env.step(action)[:4] for action in rest]
    env.restore(kept)
    assert [env.step(action)[:4] for action in rest] == first
    env.restore(kept)
    assert [env.step(action)[:4] for action in rest] == first


def test_pickles_before_reset_and_in_mid_episode(env: TaskEnv) -> None:
    with closing(pickle.loads(pickle.dumps(env))) as copy:
        assert play(copy, 3) == play(env, 3)
    env.reset(seed=3)
    env.step(actions(env)[0])
    with closing(pickle.loads(pickle.dumps(env))) as again:
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
    vector = SyncVectorEnv([lambda: make(env_id)] * 2, autoreset_mode=mode)
    first = vector.reset(seed=[0, 1])[0]
    assert all(len(text) > 5 for text in first) and first[0] != first[1]
    observations, rewards, *_ = vector.step(('{"name": 1}', '{"name": "no_such_tool"}'))
    assert all(text.startswith("error") for text in observations) and list(rewards) == [0.0, 0.0]
    vector.close()


def test_autoreset_after_an_episode_that_ended(env_id: str, env: TaskEnv) -> None:
    """What each mode does with the end of one of two episodes (gymnasium.vector.AutoresetMode)."""
    env.reset(seed=0)
    solution = env.solution()
    env.close()
    for mode in AutoresetMode:
        vector = SyncVectorEnv([lambda: make(env_id)] * 2, autoreset_mode=mode)
        vector.reset(seed=[0, 1])
        for action in solution:
            observations, rewards, terminated, _, infos = vector.step((action, '{"name": 1}'))
        assert list(rewards) == [1.0, 0.0] and list(terminated) == [True, False]
        ended = observations[0]
        if mode is AutoresetMode.SAME_STEP:
            assert list(infos["_final_obs"]) == [True, False] and infos["final_obs"][0] != ended
        elif mode is AutoresetMode.NEXT_STEP:
            observations, rewards, terminated, _, _ = vector.step(("ignored", '{"name": 1}'))
            assert observations[0] != ended and rewards[0] == 0.0 and not terminated[0]
        else:
            observations, _ = vector.reset(options={"reset_mask": np.array([True, False])})
            assert observations[0] != ended
        assert observations[1].startswith("error")
        vector.close()


def test_async_vector_without_shared_memory_carries_text(env_id: str) -> None:
    seeds: list[int | None] = [0] if env_id in SLOW else [0, 1]
    vector = AsyncVectorEnv([lambda: make(env_id) for _ in seeds], shared_memory=False)
    single = make(env_id)
    assert vector.reset(seed=seeds)[0][0] == single.reset(seed=0)[0]
    assert vector.step(["nonsense" for _ in seeds])[0][0] == single.step("nonsense")[0]
    vector.close()
    single.close()


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
        AsyncVectorEnv([lambda: make(env_id)] * 2, shared_memory=True)
