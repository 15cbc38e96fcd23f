"""Real repairs: the change between two releases of a package turns its tests green, and nothing else does."""

from __future__ import annotations

import json

import pytest

from needs import need
from official import agrees
from palestra.envs.machines import Workshop, workshop
from palestra.rewards.swe.grader import RepairTests
from palestra.rewards.swe.rules import judge
from palestra.tasks.errors import TaskError
from palestra.tasks.swe import releases
from palestra.tasks.swe.repair import repair_of
from palestra.tasks.task import Task
from sandboxes import backend
from swe import machines

RECORDS = json.loads(releases.MANIFEST.read_text())
NAMES = [f"{record['name']}-{record['new']}" for record in RECORDS]


def shop(kind: str) -> Workshop:
    machines()
    backend(kind).close()
    return workshop(kind)


def found(name: str) -> Task:
    """The task; its sources are downloaded the first time."""
    try:
        tasks = releases.load(name.rpartition("-")[0])
    except TaskError as error:
        need("cannot download" not in str(error) and "PyPI has no" not in str(error), f"PyPI: {error}")
        raise
    task = tasks.get(f"swe-releases/{name}")
    assert task is not None
    return task


def test_there_are_ten_and_more() -> None:
    assert len(RECORDS) >= 10 and len({r["name"] for r in RECORDS}) >= 5
    assert all(r["fail_to_pass"] and r["pass_to_pass"] for r in RECORDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["namespace", "docker"])
@pytest.mark.parametrize("name", NAMES)
def test_red_to_green_with_the_solution_and_red_without(name: str, kind: str) -> None:
    task = found(name)
    repair = repair_of(task)
    grader = RepairTests(shop(kind).fresh)
    gold = grader(task, repair.patch)
    assert gold.value == 1.0, gold.evidence
    left = judge(grader.run(task, b"").statuses, repair.fail_to_pass, repair.pass_to_pass)
    assert left.fixed == () and left.not_kept == ()
    assert not any(test in task.instruction for test in repair.pass_to_pass[:5])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_official_parser_agrees(name: str) -> None:
    task = found(name)
    grader = RepairTests(shop("namespace").fresh)
    assert agrees(grader.run(task, repair_of(task).patch.encode("utf-8", "surrogateescape")), task)
    assert not agrees(grader.run(task, b""), task)
