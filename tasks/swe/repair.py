"""What a repair task says: a source tree that is broken, how its tests run, and which of them decide.

`Repair` is `Task.data` of family "swe". The tree comes from a function ("module:function" with arguments, so that a
task stays small and pure), or is part of a container image. Tests are named by pytest ids, as SWE-bench names them:
`fail_to_pass` fail on the broken tree and must pass, `pass_to_pass` pass and must go on passing.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from palestra.tasks.errors import TaskError
from palestra.tasks.registry import import_function
from palestra.tasks.swe.tree import Tree
from palestra.tasks.task import Budget, Split, Task

ENV = "palestra/Swe-v0"
WORKDIR = "/work/repo"
BUDGET = Budget(turns=50, tokens=131_072, wall_s=1800, command_s=60)
TEST_NAMES = ("test_*.py", "*_test.py", "conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "*.pth")
STARTUP_NAMES = (
    "sitecustomize.py",
    "usercustomize.py",
    "pytest.py",
    "_pytest",
    "pytest.toml",
    ".pytest.toml",
)


class Suite(BaseModel):
    """How the tests of a repository run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runner: Literal["pytest", "script", "official"] = "pytest"
    """pytest: our own runner, one result per test. script: a script judges the machine and writes one number (Harbor).
    official: only the benchmark's own grader can run them; hand it the predictions."""
    arguments: tuple[str, ...] = ("tests",)
    """Files, directories and options for pytest, or the script as shell text."""
    config: str = ""
    """The file of the tree that configures pytest; empty for none."""
    python: str = "python3"
    python_path: tuple[str, ...] = (".",)
    """Directories of the tree to import from, relative to it."""
    plugins: tuple[str, ...] = ()
    """Modules of pytest plugins that the tests need; nothing else is loaded."""
    timeout_s: float = Field(default=300.0, gt=0)
    test_timeout_s: float | None = Field(default=None, gt=0)


class Source(BaseModel):
    """A function that returns the broken tree: `builder(**args) -> Tree`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    builder: str
    args: dict[str, Any] = Field(default_factory=dict)


class Repair(BaseModel):
    """The data of a repair task. Unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Source | None = None
    """None: the image holds the tree at `workdir`."""
    image: str = "python"
    """Name of a sandbox image."""
    workdir: str = WORKDIR
    setup: str = ""
    """Shell text that is run once as the machine of the task is prepared."""
    setup_user: Literal["agent", "root"] = "agent"
    suite: Suite = Suite()
    protected: tuple[str, ...] = ()
    """Patterns of paths that count as tests besides the usual names; what an agent does there is undone."""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    patch: str = ""
    """The known solution, a git diff."""
    test_patch: str = ""
    """Applied before the tests run; the agent does not see it."""
    kind: str = "repair"
    repo: str = ""
    base_commit: str = ""
    extra: dict[str, Any] = Field(default_factory=dict)
    """What else the benchmark says about the task."""


def make_task(task_id: str, split: Split, instruction: str, repair: Repair, budget: Budget = BUDGET) -> Task:
    """A task of family "swe"."""
    data = repair.model_dump(mode="json", exclude_defaults=True)
    return Task(
        id=task_id, family="swe", env=ENV, split=split, instruction=instruction, data=data, budget=budget
    )


def repair_of(task: Task) -> Repair:
    """The data of `task`, checked. Raises TaskError naming the field."""
    try:
        return Repair.model_validate(task.data)
    except pydantic.ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise TaskError(f"task {task.id!r} is no repair task: {problems}") from error


def tree_of(repair: Repair) -> Tree | None:
    """The broken tree, or None where the image holds it. Raises TaskError, and what its builder raises."""
    if repair.source is None:
        return None
    tree = import_function(repair.source.builder)(**repair.source.args)
    if not isinstance(tree, Tree):
        raise TaskError(f"{repair.source.builder!r} must return a Tree, it returned {type(tree).__name__}")
    return tree


def is_protected(path: str, repair: Repair) -> bool:
    """Whether `path` belongs to the tests, their configuration, or what Python runs unasked."""
    parts = PurePosixPath(path).parts
    if any(fnmatchcase(part, name) for part in parts for name in (*TEST_NAMES, *STARTUP_NAMES)):
        return True
    patterns = (*repair.protected, *_files(repair.suite), repair.suite.config)
    return any(_matches(path, pattern) for pattern in patterns if pattern)


def protected_among(paths: Iterable[str], repair: Repair, tree_paths: Iterable[str]) -> list[str]:
    """Those of the changed `paths` that are protected, or that stand where a protected file of the tree was."""
    guarded = [p for p in tree_paths if is_protected(p, repair)]
    parents = {str(parent) for p in guarded for parent in PurePosixPath(p).parents}
    return [p for p in paths if p in parents or is_protected(p, repair)]


@functools.cache
def _files(suite: Suite) -> tuple[str, ...]:
    """The files and directories among the arguments of pytest."""
    if suite.runner != "pytest":
        return ()
    return tuple(a.partition("::")[0].rstrip("/") for a in suite.arguments if not a.startswith("-"))


def _matches(path: str, pattern: str) -> bool:
    """Whether `path` is, or lies below, what `pattern` names."""
    whole = (path, *map(str, PurePosixPath(path).parents))
    return any(fnmatchcase(p, pattern) for p in whole if p != ".")
