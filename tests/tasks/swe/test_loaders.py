"""Benchmark formats become repair tasks, and what is wrong in a file is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palestra.tasks.errors import TaskFileError
from palestra.tasks.registry import load_tasks
from palestra.tasks.swe.repair import repair_of, tree_of
from palestra.tasks.swe.tree import git

PATCH = "diff --git a/pkg/a.py b/pkg/a.py\n--- a/pkg/a.py\n+++ b/pkg/a.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
TESTS = PATCH.replace("pkg/a.py", "tests/test_a.py")
INSTANCE: dict[str, Any] = {
    "instance_id": "acme__pkg-12",
    "repo": "acme/pkg",
    "base_commit": "HEAD",
    "patch": PATCH,
    "test_patch": TESTS,
    "problem_statement": "x is wrong",
    "version": "1.0",
    "FAIL_TO_PASS": '["tests/test_a.py::test_x[1-2]"]',
    "PASS_TO_PASS": '["tests/test_b.py::T::test_y"]',
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with a commit that breaks pkg/a.py, and one that repairs it and brings its test."""
    root = tmp_path / "clones" / "pkg"
    root.mkdir(parents=True)
    git(root, "init", "-q")
    for number, (code, test) in enumerate([("x = 1\n", None), ("x = 2\n", "def test_x(): ...\n")]):
        (root / "pkg").mkdir(exist_ok=True)
        (root / "pkg" / "a.py").write_text(code)
        if test is not None:
            (root / "tests").mkdir()
            (root / "tests" / "test_a.py").write_text(test)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", f"commit {number}")
    return root


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def test_swebench_from_the_official_image(tmp_path: Path) -> None:
    file = write(tmp_path / "lite.jsonl", INSTANCE)
    (task,) = load_tasks(f"swebench?path={file}", "test")
    repair = repair_of(task)
    assert (task.id, task.instruction) == ("swebench/acme__pkg-12", "x is wrong")
    assert (
        repair.image == "swebench/sweb.eval.x86_64.acme_1776_pkg-12:latest" and repair.workdir == "/testbed"
    )
    assert repair.fail_to_pass == ("tests/test_a.py::test_x[1-2]",) and repair.source is None
    assert (
        repair.suite.arguments == ("tests/test_a.py", "tests/test_b.py") and repair.suite.runner == "pytest"
    )
    assert repair.protected == ("tests/test_a.py",) and repair.extra == {
        "instance_id": "acme__pkg-12",
        "version": "1.0",
    }


def test_swebench_from_a_clone(tmp_path: Path, clone: Path) -> None:
    file = write(
        tmp_path / "lite.jsonl", INSTANCE | {"base_commit": "HEAD^", "FAIL_TO_PASS": ["tests/test_a.py::t"]}
    )
    (task,) = load_tasks(f"swebench?path={file}&repo_root={clone.parent}")
    tree = tree_of(repair_of(task))
    assert tree is not None and tree.text("pkg/a.py") == "x = 1\n" and repair_of(task).workdir == "/work/repo"


def test_swebench_in_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(pyarrow.Table.from_pylist([INSTANCE]), tmp_path / "verified.parquet")
    (task,) = load_tasks(f"swebench?path={tmp_path / 'verified.parquet'}")
    assert task.id == "swebench/acme__pkg-12"


def test_tests_that_pytest_does_not_name_are_left_to_the_official_grader(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", INSTANCE | {"FAIL_TO_PASS": '["test_x (app.tests.Case)"]'})
    (task,) = load_tasks(f"swebench?path={file}")
    assert repair_of(task).suite.runner == "official"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"patch": None}, "line 1: field 'patch' must be text"),
        ({"FAIL_TO_PASS": "[broken"}, "line 1, FAIL_TO_PASS: not a JSON list"),
        ({"PASS_TO_PASS": [1]}, "line 1, PASS_TO_PASS: expected a list of test ids"),
    ],
)
def test_a_bad_instance_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    file = write(tmp_path / "x.jsonl", INSTANCE | change)
    with pytest.raises(TaskFileError, match=says):
        load_tasks(f"swebench?path={file}")


def test_multi_swe_bench(tmp_path: Path) -> None:
    record = {
        "org": "acme",
        "repo": "pkg",
        "number": 7,
        "base": {"sha": "abc"},
        "resolved_issues": [{"title": "Broken", "body": "It is."}],
        "fix_patch": PATCH,
        "test_patch": TESTS,
        "f2p_tests": {"TestX": {"run": "FAIL", "test": "FAIL", "fix": "PASS"}},
        "p2p_tests": {"TestY": {}},
        "n2p_tests": {"TestZ": {}},
    }
    (task,) = load_tasks(f"multi-swe-bench?path={write(tmp_path / 'm.jsonl', record)}")
    repair = repair_of(task)
    assert (task.id, task.instruction) == ("multi-swe-bench/acme__pkg-7", "Broken\n\nIt is.")
    assert repair.fail_to_pass == ("TestX", "TestZ") and repair.suite.runner == "official"
    assert repair.image == "mswebench/acme_m_pkg:pr-7" and repair.workdir == "/home/pkg"


def test_swebench_pro(tmp_path: Path, clone: Path) -> None:
    fixed, broken = (git(clone, "rev-parse", c).decode().strip() for c in ("HEAD", "HEAD^"))
    folder = tmp_path / "run_scripts" / f"instance_acme__pkg-{fixed}-vabc123"
    folder.mkdir(parents=True)
    lines = {
        "Instance ID": folder.name,
        "Repository": "acme/pkg",
        "Base Commit": broken,
        "Test Files": '["tests/test_a.py::test_x[a"]',
        "FAIL_TO_PASS": '["tests/test_a.py::test_x"]',
        "PASS_TO_PASS": "[]",
    }
    (folder / "instance_info.txt").write_text("\n".join(f"{k}: {v}" for k, v in lines.items()))
    (task,) = load_tasks(f"swebench-pro?path={folder.parent}&repo_root={clone.parent}")
    repair = repair_of(task)
    assert task.instruction == "commit 1" and "+x = 2" in repair.patch and "test_x" not in repair.patch
    assert "+def test_x" in repair.test_patch and repair.suite.arguments == ("tests/test_a.py",)
    with pytest.raises(TaskFileError, match="no clone of acme/pkg"):
        load_tasks(f"swebench-pro?path={folder.parent}&repo_root={tmp_path}")
    assert len(load_tasks(f"swebench-pro?path={folder.parent}&repo_root={tmp_path}&existing_only=true")) == 0


def test_quixbugs_hides_the_corrected_programs(tmp_path: Path) -> None:
    for path, text in {
        "python_programs/gcd.py": "def gcd(a, b):\n    return a\n",
        "correct_python_programs/gcd.py": "def gcd(a, b):\n    return b",
        "python_testcases/test_gcd.py": "import pytest\n",
        "json_testcases/gcd.json": "[1]\n",
        "conftest.py": "\n",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (task,) = load_tasks(f"quixbugs?path={tmp_path}")
    tree = tree_of(repair_of(task))
    assert tree is not None and not any(path.startswith("correct") for path in tree)
    assert "+    return b" in repair_of(task).patch and repair_of(task).suite.test_timeout_s == 5


def test_bugsinpy(tmp_path: Path, clone: Path) -> None:
    fixed, broken = (git(clone, "rev-parse", c).decode().strip() for c in ("HEAD", "HEAD^"))
    bug = tmp_path / "projects" / "pkg" / "bugs" / "3"
    bug.mkdir(parents=True)
    info = {
        "python_version": "3.8.3",
        "buggy_commit_id": broken,
        "fixed_commit_id": fixed,
        "test_file": "tests/test_a.py",
    }
    (bug / "bug.info").write_text("\n".join(f'{k}="{v}"' for k, v in info.items()))
    (bug / "bug_patch.txt").write_text(PATCH)
    (bug / "run_test.sh").write_text(
        "pytest tests/test_a.py::test_x\npython -m unittest -q tests.test_a.Case.test_z\n"
    )
    (task,) = load_tasks(f"bugsinpy?path={tmp_path / 'projects'}&repo_root={clone.parent}")
    repair = repair_of(task)
    assert repair.fail_to_pass == ("tests/test_a.py::test_x", "tests/test_a.py::Case::test_z")
    assert "+def test_x" in repair.test_patch and repair.patch == PATCH


def test_harbor(tmp_path: Path) -> None:
    folder = tmp_path / "hello"
    for path, text in {
        "task.toml": "[verifier]\ntimeout_sec = 30.0\n[agent]\ntimeout_sec = 99.0\n[metadata]\ndifficulty = 'easy'\n",
        "instruction.md": "Write hello.\n",
        "environment/Dockerfile": "FROM python:3.12\nWORKDIR /app\nRUN echo 1 > a \\\n && echo 2 > b\nENV X=1\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "echo hello > hello\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (task,) = load_tasks(f"harbor?path={tmp_path}")
    repair = repair_of(task)
    assert (task.id, task.instruction, task.budget.wall_s) == ("harbor/hello", "Write hello.", 99.0)
    assert repair.image == "python:3.12" and repair.workdir == "/app" and "echo 1 > a" in repair.setup
    assert repair.suite.runner == "script" and repair.suite.timeout_s == 30.0
    (folder / "environment" / "Dockerfile").write_text("FROM x\nCOPY a b\n")
    with pytest.raises(TaskFileError, match="COPY is not understood"):
        load_tasks(f"harbor?path={folder}")
