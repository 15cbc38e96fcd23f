"""Validation finds tasks that should not be trained or measured on."""

from __future__ import annotations

from typing import Any

import pytest

from palestra.envs.validate import Report, validate_task
from palestra.tasks.registry import find_task, load_tasks
from palestra.tasks.task import Task


def failed(report: Report) -> dict[str, str]:
    return {check.name: check.detail for check in report.checks if not check.passed}


def changed(**data: Any) -> Task:
    task = find_task("sql-gym", "sql-gym/clinic/count_filter")
    return task.model_copy(update={"data": task.data | data})


@pytest.mark.parametrize("name", ["sql-gym", "sql-gym-kinds", "sql-tiny"])
def test_built_in_tasks_pass(name: str) -> None:
    for task in load_tasks(name)[3::331]:
        report = validate_task(task)
        assert report.passed and len(report.checks) == 4, failed(report)


@pytest.mark.parametrize(
    ("data", "check", "says"),
    [
        ({"gold_sql": "SELECT absent FROM visits"}, "gold scores 1", "no such column: absent"),
        ({"gold_sql": "SELECT 1 WHERE 0"}, "gold scores 1", "returns no rows"),
        ({"gold_sql": "SELECT random() FROM visits"}, "gold scores 1", "random is not allowed"),
        ({"gold_sql": "SELECT 42"}, "cheats score 0", "constant of the gold's result: 1.0"),
        ({"database": {"file": "gone.sqlite"}}, "repeats agree", "gone.sqlite"),
        ({"database": {"file": "gone.sqlite"}}, "no-op scores 0", "gone.sqlite"),
    ],
)
def test_a_bad_task_fails_the_check_that_says_why(data: dict[str, Any], check: str, says: str) -> None:
    report = validate_task(changed(**data))
    assert not report.passed and says in failed(report)[check]
