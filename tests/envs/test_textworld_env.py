"""palestra/TextWorld-v0 and its task sets."""

from __future__ import annotations

import json

import pytest

from palestra.envs.errors import EnvSetupError
from palestra.envs.textworld_env import TextWorldEnv, game_file
from palestra.envs.textworld_games import DEFAULTS, make_game
from palestra.envs.validate import validate_task
from palestra.tasks.errors import TaskParameterError
from palestra.tasks.registry import load_tasks
from palestra.tasks.task import TaskSet
from small_worlds import small_tasks

TASKS = "palestra/TextWorld-v0"


@pytest.fixture(scope="module")
def tasks() -> TaskSet:
    return small_tasks(TASKS, "")


def test_generated_games_are_valid_tasks(tasks: TaskSet) -> None:
    report = validate_task(tasks[0])
    assert report.passed, report


def test_the_introduction_names_the_goal_without_a_banner(tasks: TaskSet) -> None:
    observation, _ = TextWorldEnv().reset(options={"task": tasks[0]})
    assert "coin" in observation and "$$" not in observation and "\n\n\n" not in observation


def test_commands_that_make_sense_on_request(tasks: TaskSet) -> None:
    env = TextWorldEnv(admissible=True)
    observation, _ = env.reset(options={"task": tasks[0]})
    assert "look" in observation.rpartition("Commands: ")[2]


def test_an_anchor_is_a_place_and_not_the_way_there(tasks: TaskSet) -> None:
    env = TextWorldEnv()
    start = env.reset(options={"task": tasks[0]})[1]["anchor"]
    assert env.step("inventory")[4]["anchor"] == env.step("frobnicate")[4]["anchor"] == start
    there = json.loads(env.solution()[0])["arguments"]["command"]
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}[there.split()[-1]]
    assert env.step(there)[4]["anchor"] != start
    assert env.step(f"go {back}")[4]["anchor"] == start


@pytest.mark.parametrize(
    "command",
    [
        "save",
        "QUIT",
        "restore",
        "script on",
        "tw-print state",
        "undo",
        "go north. take coin",
        "é",
        "",
        "x" * 300,
        "a\x00",
    ],
)
def test_attack_the_interpreter_is_out_of_reach(tasks: TaskSet, command: str) -> None:
    env = TextWorldEnv()
    before = env.reset(options={"task": tasks[0]})[1]["anchor"]
    observation, reward, terminated, _, info = env.step(command)
    assert observation.startswith("error: a command is") and info["anchor"] == before
    assert (reward, terminated) == (0.0, False)


def test_games_are_made_once_and_are_named_by_all_that_decides_them(tasks: TaskSet) -> None:
    path = game_file(tasks[0])
    made = path.stat().st_mtime_ns
    assert game_file(tasks[0]) == path and path.stat().st_mtime_ns == made
    assert game_file(tasks[1]) != path


@pytest.mark.parametrize(
    ("challenge", "settings", "says"),
    [("tw-nothing", {}, "no challenge"), ("tw-coin_collector", {"height": 3}, "no setting height")],
)
def test_what_cannot_be_made_is_refused(challenge: str, settings: dict[str, int], says: str) -> None:
    with pytest.raises(EnvSetupError, match=says):
        make_game(challenge, settings, 1)


def test_seeds_and_kinds_of_the_test_split_are_not_trained_on() -> None:
    by_seed, by_kind = load_tasks("textworld"), load_tasks("textworld-kinds")
    assert not {t.data["game"]["seed"] for t in by_seed.split("train")} & {
        t.data["game"]["seed"] for t in by_seed.split("test")
    }
    assert {t.data["kind"] for t in by_kind.split("train")}.isdisjoint(
        t.data["kind"] for t in by_kind.split("test")
    )
    assert {t.data["kind"] for t in by_kind} <= set(DEFAULTS)


def test_scienceworld_has_its_official_splits() -> None:
    tasks = load_tasks("scienceworld")
    assert len(tasks) == 7207 and len({t.data["task"] for t in tasks}) == 30
    boil = {
        s: [t.data["variation"] for t in load_tasks("scienceworld?task=boil", s)]
        for s in ("train", "dev", "test")
    }
    assert boil == {"train": list(range(14)), "dev": list(range(14, 21)), "test": list(range(21, 30))}
    with pytest.raises(TaskParameterError, match="no task 'broil'; it has boil"):
        load_tasks("scienceworld?task=broil")
