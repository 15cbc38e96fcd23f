"""The three sites: generated tasks are valid, and the reward is the database's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from palestra.envs.validate import validate_task
from palestra.envs.web.env import WebEnv
from palestra.rewards.score import GraderError
from palestra.rewards.web import Outcome, StateCheck, same_answer
from palestra.tasks.registry import load_tasks
from palestra.tasks.task import Task
from palestra.tasks.web.actions import act as call
from palestra.tasks.web.sites.build import initial

Start = Callable[[Task], WebEnv]

TASKS = load_tasks("web-sites")
KINDS = sorted({t.data["kind"] for t in TASKS})
VALIDATED = [t for t in TASKS.split("test") if t.id.endswith("/200")]
"""One task of each kind; `palestra tasks validate web-sites` takes all."""


def test_the_set() -> None:
    assert len(KINDS) >= 39 and len(VALIDATED) == len(KINDS)
    assert min(Counter(t.data["site"] for t in TASKS).values()) > 100
    seeds = [{t.data["seed"] for t in TASKS.split(s)} for s in ("train", "dev", "test")]
    assert not seeds[0] & seeds[1] and not seeds[0] & seeds[2] and not seeds[1] & seeds[2]
    assert all(t.data["near_misses"] for t in TASKS)


@pytest.mark.parametrize("task", VALIDATED[::6], ids=lambda task: task.id)
def test_gold_scores_1_and_everything_else_0(start: Start, task: Task) -> None:
    start(task)
    report = validate_task(task)
    assert report.passed, [c for c in report.checks if not c.passed]


def test_every_gold_changes_the_state_or_asks() -> None:
    for task in TASKS:
        score = StateCheck()(task, Outcome(initial(task.data["site"], task.data["seed"]), None))
        assert score.value == 0.0 and score.valid, task.id


def test_a_change_beside_the_goal_costs_the_reward(start: Start) -> None:
    task = next(t for t in TASKS if t.data["kind"] == "shop/wish")
    env = start(task)
    *gold, last = env.solution()
    for action in [*gold, call("click", target='link "Cart"')]:
        env.step(action)
    remove = next(e for e in env.view.elements if e.role == "button" and e.name.startswith("Remove"))
    env.step(f"click {remove.id}")
    assert env.step(last)[1] == 0.0 and "cart lacks" in env.score().evidence


def test_a_goal_that_does_not_run_is_no_zero() -> None:
    task = TASKS[0].model_copy(update={"data": TASKS[0].data | {"gold_sql": ["UPDATE nothing SET x = 1"]}})
    with pytest.raises(GraderError, match="the gold state cannot be had"):
        StateCheck()(task, Outcome(initial("shop", 0), None))


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [("12", "12", True), ("12.50", "12.5", True), (" Ada. ", "ada", True), ("13", "12", False), ("", "12", False),
     ("12 or 13", "12", False), (None, "12", False)],
)  # fmt: skip
def test_answers(given: str | None, wanted: str, same: bool) -> None:
    assert same_answer(given, wanted) is same


@pytest.mark.parametrize("site", ["shop", "forum", "desk"])
def test_equal_actions_look_alike_over_fifty_steps(start: Start, site: str) -> None:
    gold = [t for t in TASKS.split("test") if t.data["site"] == site and t.id.endswith("/200")]
    actions = [a for t in gold for a in t.data["gold"][:-1]][:50]
    task = gold[0].model_copy(update={"budget": gold[0].budget.model_copy(update={"turns": 60})})

    def digests() -> list[str]:
        env = start(task)
        return [env.step(action)[4]["state_digest"] for action in actions]

    assert digests() == digests()
