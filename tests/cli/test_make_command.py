"""`palestra tasks make`: commits and planted bugs become validated tasks in a file; what is no task says why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import swe
from palestra.tasks.files import read_tasks
from palestra.tasks.swe import tiny
from palestra.tasks.swe.tree import File, Tree, git

Command = Callable[..., Any]

SMALL = Tree(
    {
        "pairs.py": File(b"def total(a, b=1):\n    return a + b\n"),
        "tests/test_pairs.py": File(
            b"import pairs\n\n\ndef test_total():\n"
            b"    assert pairs.total(2, 3) == 5 and pairs.total(2) == 3\n\n\n"
            b"def test_nothing():\n    pass\n"
        ),
    }
)


def commit(root: Path, message: str, tree: Tree) -> None:
    for path, file in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(file.data)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", message)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three commits: something is missing, it is repaired with its test, and a comment changes."""
    root = tmp_path / "pairs"
    root.mkdir()
    git(root, "init", "-q")
    commit(root, "start", Tree({"pairs.py": File(b"def total(a, b=1):\n    return a\n")}))
    commit(root, "Add the second number too", SMALL)
    commit(root, "comment", SMALL.replaced({"pairs.py": File(SMALL["pairs.py"].data + b"# done\n")}))
    return root


def test_commits(palestra: Command, repository: Path, tmp_path: Path) -> None:
    swe.machines()
    out = tmp_path / "tasks.jsonl"
    ended = palestra("tasks", "make", "commit", repository, "HEAD^", "HEAD", "--out", out, "--repeats", 1)
    assert ended.status == 1, ended.err
    fixed = git(repository, "rev-parse", "HEAD^").decode()[:12]
    assert f"pairs/{fixed}: 1 tests to repair, 1 to keep" in ended.out
    assert "HEAD: no task: no test fails without the solution and passes with it" in ended.out
    (task,) = read_tasks(out)
    assert "Add the second number too" in task.instruction
    assert task.data["fail_to_pass"] == ["tests/test_pairs.py::test_total"]


def test_bugs(palestra: Command, tmp_path: Path) -> None:
    swe.machines()
    folder, out = tmp_path / "small", tmp_path / "bugs.jsonl"
    folder.mkdir()
    SMALL.write_to(folder)
    ended = palestra("tasks", "make", "bugs", folder, "--count", "3", "--out", out)
    assert ended.status == 0 and f"3 tasks in {out}" in ended.out, ended.err
    for task in read_tasks(out):
        assert task.data["fail_to_pass"] == ["tests/test_pairs.py::test_total"]
        assert task.data["pass_to_pass"] == ["tests/test_pairs.py::test_nothing"]


def test_a_release_needs_two_versions(palestra: Command) -> None:
    ended = palestra("tasks", "make", "release", "sqlparse", "0.5.0")
    assert ended.status == 2 and "give at least two versions" in ended.err


def test_an_unknown_backend_is_named(palestra: Command, tmp_path: Path) -> None:
    ended = palestra("tasks", "make", "bugs", tmp_path, "--backend", "moon")
    assert ended.status == 2 and "no sandbox backend 'moon'" in ended.err


@pytest.mark.slow
def test_swe_tiny_is_valid(palestra: Command) -> None:
    swe.machines()
    ended = palestra("tasks", "validate", "swe-tiny", "--limit", "1")
    assert ended.status == 0 and "3 of 3 tasks are valid" in ended.out, ended.out
    assert set(tiny.PACKAGES.values()) == {"train", "dev", "test"}
