"""ALFWorld's games, found in its layout and played by its rules."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from alfworld_files import TASK, household
from needs import need
from palestra.envs.errors import EnvSetupError
from palestra.envs.textworld_env import TextWorldEnv
from palestra.envs.validate import validate_task
from palestra.tasks.errors import TaskFileError
from palestra.tasks.registry import load_tasks
from palestra.tasks.task import Task

LOAD = "alfworld?path={}&split=test"
OPEN = ["go to cabinet 1", "open cabinet 1"]


@pytest.fixture(autouse=True, scope="module")
def installed() -> None:
    there = all(map(importlib.util.find_spec, ("alfworld", "fast_downward")))
    need(there, "ALFWorld and Fast Downward: run tests/services/alfworld.sh")


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    [found] = load_tasks(LOAD.format(household(tmp_path_factory.mktemp("alfworld"))))
    return found


def play(task: Task, commands: list[str], env: TextWorldEnv | None = None) -> list[tuple[str, str]]:
    """(observation, anchor) at the beginning and after each command."""
    with closing(env or TextWorldEnv()) as env:
        observation, info = env.reset(options={"task": task})
        seen = [(observation, str(info["anchor"]))]
        for command in commands:
            observation, *_, info = env.step(command)
            seen.append((observation, str(info["anchor"])))
    return seen


def test_games_are_found_that_its_own_environment_plays(tmp_path: Path) -> None:
    folder = household(tmp_path)
    household(tmp_path, "pick_heat_then_place_in_recep-AppleSliced-None-Shelf-1")
    household(tmp_path, "pick_and_place_with_movable_recep-Mug-Plate-Shelf-1")
    household(tmp_path, "pick_and_place_simple-Mug-None-Shelf-2", solvable=False)
    [task] = load_tasks(LOAD.format(folder))
    assert task.id == "alfworld/pick_and_place_simple-Mug-None-Shelf-1/trial_T1"
    assert (task.split, task.data["kind"]) == ("test", "pick_and_place_simple")


def test_a_game_is_a_valid_task(task: Task) -> None:
    report = validate_task(task)
    assert report.passed, report


def test_the_plan_wins_with_the_names_of_its_own_environment(task: Task) -> None:
    with closing(TextWorldEnv()) as env:
        observation, _ = env.reset(options={"task": task})
        assert TASK in observation and "you see a cabinet 1, and a shelf 1." in observation
        assert json.loads(env.solution()[2])["arguments"]["command"] == "take mug 2 from cabinet 1"
        *_, last = [env.step(action) for action in env.solution()]
    assert last[:4] == ("You move the mug 2 to the shelf 1.", 1.0, True, False)


def test_a_command_of_another_place_does_nothing(task: Task) -> None:
    assert play(task, ["open cabinet 1"])[-1][0] == "Nothing happens."


def test_the_anchor_is_what_is_at_hand_however_the_agent_came_there(task: Task) -> None:
    seen = play(
        task, [*OPEN, "look", "go to shelf 1", "go to cabinet 1", "close cabinet 1", "open cabinet 1"]
    )
    start, arrived, opened, looked, shelf, back, closed, again = [anchor for _, anchor in seen]
    assert opened == looked == back == again and arrived == closed
    assert len({start, arrived, opened, shelf}) == 4


def test_things_are_listed_alike_in_every_process(task: Task) -> None:
    """TextWorld's own order follows the hashes of strings."""
    script = (
        "import pickle, sys\nfrom test_alfworld import OPEN, play\n"
        "print(play(pickle.loads(sys.stdin.buffer.read()), OPEN))"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    told = [
        subprocess.run(
            [sys.executable, "-c", script],
            input=pickle.dumps(task),
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": paths},
            capture_output=True,
            check=True,
        ).stdout.decode()
        for seed in ("1", "2")
    ]
    assert told == [f"{play(task, OPEN)}\n"] * 2


def test_two_games_are_played_apart_and_one_goes_on_after_a_copy(task: Task) -> None:
    with closing(TextWorldEnv()) as one, closing(TextWorldEnv()) as other:
        for env in (one, other):
            env.reset(options={"task": task})
        for command in OPEN:
            one.step(command)
        assert other.step("open cabinet 1")[0] == "Nothing happens."
        with closing(pickle.loads(pickle.dumps(one))) as copy:
            assert copy.step("take mug 1 from cabinet 1")[:2] == one.step("take mug 1 from cabinet 1")[:2]
        kept = one.snapshot()
        first = one.step("inventory")[0]
        one.step("go to shelf 1")
        one.restore(kept)
        assert one.step("inventory")[0] == first == "You are carrying: a mug 1."


def test_a_broken_game_is_said(tmp_path: Path) -> None:
    [task] = load_tasks(LOAD.format(household(tmp_path, pddl_problem="(define")))
    with pytest.raises(EnvSetupError, match="cannot be started"):
        TextWorldEnv().reset(options={"task": task})


def test_without_games_the_user_is_told() -> None:
    with pytest.raises(TaskFileError, match="alfworld-download"):
        load_tasks("alfworld?path=/nowhere")
