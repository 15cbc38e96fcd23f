"""Finding task sets by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from palestra.tasks import registry
from palestra.tasks.errors import TaskError, TaskParameterError, UnknownTaskError, UnknownTaskSetError
from palestra.tasks.files import write_tasks
from palestra.tasks.registry import find_task, load_tasks, register_tasks, registered
from palestra.tasks.task import Task, TaskSet


def make_task(name: str, split: str = "train") -> Task:
    return Task.model_validate(
        {"id": name, "family": "sql", "env": "palestra/Sql-v0", "split": split, "instruction": "How many?"}
    )


def counted(tasks: int = 2, prefix: str = "t") -> TaskSet:
    return TaskSet("counted", [make_task(f"{prefix}{i}", "test" if i % 2 else "train") for i in range(tasks)])


def not_a_task_set() -> list[int]:
    return [1]


@pytest.fixture
def counted_name(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(registry, "_SOURCES", dict(registry._SOURCES))
    monkeypatch.setitem(sys.modules, "counted_tasks", sys.modules[__name__])
    register_tasks("counted", "counted_tasks:counted", "for tests")
    return "counted"


def test_a_registered_name_is_loaded_and_listed(counted_name: str) -> None:
    assert [t.id for t in load_tasks(counted_name)] == ["t0", "t1"]
    assert ("counted", "for tests") in registered()


def test_split_and_parameters_of_the_name(counted_name: str) -> None:
    assert [t.id for t in load_tasks("counted?tasks=5&prefix=q", split="test")] == ["q1", "q3"]


def test_a_dotted_path_needs_no_registration(counted_name: str) -> None:
    assert len(load_tasks("counted_tasks:counted?tasks=7")) == 7


def test_a_task_file_is_a_source(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    write_tasks(path, counted(3))
    assert list(load_tasks(str(path))) == list(counted(3))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("sql-tinny", r"Did you mean 'sql-tiny'.*Registered: .*sql-gym"),
        ("zzz", r"no task set 'zzz'\. Registered"),
    ],
)
def test_an_unknown_name_says_what_exists(name: str, says: str) -> None:
    with pytest.raises(UnknownTaskSetError, match=says) as error:
        load_tasks(name)
    assert isinstance(error.value, KeyError)


@pytest.mark.parametrize("name", ["counted?task=3", "counted?tasks=3&x=1"])
def test_an_unknown_parameter_names_the_known_ones(counted_name: str, name: str) -> None:
    with pytest.raises(TaskParameterError, match="its parameters are: tasks, prefix"):
        load_tasks(name)


def test_an_unknown_split_names_the_splits(counted_name: str) -> None:
    with pytest.raises(TaskParameterError, match="train, dev, test"):
        load_tasks(counted_name, split="validation")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:load", "cannot import 'no_such_module:load'"),
        ("counted_tasks:nothing", "cannot import 'counted_tasks:nothing'"),
        ("counted_tasks:not_a_task_set", "must return a TaskSet, it returned list"),
        ("counted_tasks:__doc__", "is not a function"),
    ],
)
def test_a_bad_dotted_path_says_what_is_wrong(counted_name: str, name: str, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        load_tasks(name)


def test_register_refuses_what_is_not_a_path_to_a_function() -> None:
    with pytest.raises(ValueError, match="package.module:function"):
        register_tasks("x", "package.module", "")


def test_find_task_suggests_the_nearest_id(counted_name: str) -> None:
    assert find_task(counted_name, "t1").id == "t1"
    with pytest.raises(UnknownTaskError, match="no task 't11' among its 2. Did you mean 't1'"):
        find_task(counted_name, "t11")


def test_listing_names_imports_no_task_set() -> None:
    code = (
        "import sys; from palestra.tasks.registry import registered; registered(); "
        "print(sorted(m for m in sys.modules if m.startswith('palestra.tasks.sql') or m == 'gymnasium'))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
