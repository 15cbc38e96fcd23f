"""Django Oscar as a world: an application that nobody here wrote, its own file for each episode."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

import pytest

from needs import need
from palestra.envs.web.env import WebEnv
from palestra.rewards.score import GraderError
from palestra.tasks.task import Budget, Task
from palestra.tasks.web.actions import click, done, goto

pytestmark = pytest.mark.filterwarnings("ignore")  # what the application warns of is its own affair

Start = Callable[[Task], WebEnv]

BASKET = [["SELECT product_id, quantity FROM basket_line", [[1, 1]]]]
GOLD = (click("button", "Add to basket"), done())


@pytest.fixture(autouse=True)
def _oscar() -> None:
    need(find_spec("oscar"), "django-oscar, of the extra `oscar`: tests/services/chromium.sh")


def oscar_task(checks: object = BASKET) -> Task:
    return Task(
        id="oscar/basket",
        family="web",
        env="palestra/Web-v0",
        split="test",
        instruction="Put a red kettle into the basket.",
        data={"app": {"builder": "palestra.envs.web.apps.oscar:build", "args": {"checks": checks}}},
        budget=Budget(turns=10, command_s=60),
    )


def test_a_basket_is_judged_by_the_database(start: Start) -> None:
    env = start(oscar_task())
    assert env.view.find("heading", "Red kettle") and env.score().value == 0.0
    assert env.step(GOLD[0])[4]["irreversible"]
    assert env.step(GOLD[1])[1] == 1.0


def test_two_episodes_have_their_own_shop(start: Start) -> None:
    one, other = start(oscar_task()), start(oscar_task())
    one.step(GOLD[0])
    other.step(goto("http://oscar.test/en-gb/basket/"))
    assert one.score().value == 1.0 and other.score().value == 0.0
    assert any("basket is empty" in e.name for e in other.view.elements)


def test_a_check_that_does_not_run_is_no_zero(start: Start) -> None:
    with pytest.raises(GraderError, match="a check does not run"):
        start(oscar_task([["SELECT nothing FROM nowhere", []]])).score()
