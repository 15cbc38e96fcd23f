"""Candidates: what is broken, what repairs it, and what belongs to the tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from palestra.tasks.errors import TaskError
from palestra.tasks.registry import load_tasks
from palestra.tasks.swe import tiny
from palestra.tasks.swe.make import (
    from_commit,
    guess_suite,
    mutants,
    mutated,
    news,
    planted_repair,
    source_files,
)
from palestra.tasks.swe.repair import Repair, Source, Suite, is_protected, protected_among, repair_of, tree_of
from palestra.tasks.swe.tree import File, Tree, git, paths_of


def tree(**files: str) -> Tree:
    return Tree(
        {name.replace("__", "/").replace("_DOT_", "."): File(text.encode()) for name, text in files.items()}
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    for message, files in {
        "start": {"pkg.py": "x = 1\n", "tests/test_pkg.py": "old\n", "conftest.py": "\n"},
        "Repair x": {"pkg.py": "x = 2\n", "tests/test_pkg.py": "new\n", "tests/data.json": "{}\n"},
        "tests only": {"tests/test_pkg.py": "newer\n"},
    }.items():
        for path, text in files.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_text(text)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", message)
    return tmp_path


def test_a_commit_is_split_into_code_and_tests(repository: Path) -> None:
    candidate = from_commit(repository, "HEAD^")
    repair = candidate.repair
    assert candidate.statement == "Repair x" and repair.suite.arguments == ("tests",)
    assert paths_of(repair.patch) == ["pkg.py"]
    assert paths_of(repair.test_patch) == ["tests/data.json", "tests/test_pkg.py"]
    found = tree_of(repair)
    assert found is not None and found.text("pkg.py") == "x = 1\n"


def test_a_commit_of_tests_is_no_candidate(repository: Path) -> None:
    with pytest.raises(TaskError, match="nothing but tests"):
        from_commit(repository, "HEAD")
    with pytest.raises(TaskError, match="rev-parse"):
        from_commit(repository, "no-such-commit")


def test_suites_are_guessed_from_the_tree() -> None:
    plain = guess_suite(tree(tests__test_a_DOT_py="", a_DOT_py=""))
    assert plain == Suite(arguments=("tests",))
    ini = guess_suite(tree(test__t_DOT_py="", src__a_DOT_py="", setup_DOT_cfg="[tool:pytest]\n"))
    assert ini == Suite(arguments=("test",), config="setup.cfg", python_path=("src", "."))
    assert guess_suite(tree(test_a_DOT_py="")).arguments == ("test_a.py",)
    with pytest.raises(TaskError, match="no tests"):
        guess_suite(tree(a_DOT_py=""))


def test_news_are_the_lines_that_are_new() -> None:
    before = tree(CHANGES_DOT_rst="1.0\n* old\n")
    after = tree(CHANGES_DOT_rst="1.1\n* better\n\n1.0\n* old\n")
    assert news(before, after) == "1.1\n* better"
    assert news(tree(a_DOT_py=""), tree(a_DOT_py="x")) == ""


@pytest.mark.parametrize(
    "path",
    [
        "tests/x.py",
        "tests",
        "a/test_b.py",
        "a/b_test.py",
        "conftest.py",
        "a/conftest.py",
        "pytest.ini",
        "tox.ini",
    ]
    + ["sitecustomize.py", "x.pth", "pytest.py", "_pytest/main.py", "setup.cfg", "data/gold/a.json"],
)
def test_what_is_protected(path: str) -> None:
    repair = Repair(suite=Suite(arguments=("tests", "-x"), config="setup.cfg"), protected=("data/gold",))
    assert is_protected(path, repair)


@pytest.mark.parametrize("path", ["a.py", "src/testing.py", "contest.py", "data/golden.json", "latest/b.py"])
def test_what_is_not_protected(path: str) -> None:
    assert not is_protected(path, Repair(suite=Suite(arguments=("tests",)), protected=("data/gold",)))


def test_what_stands_where_tests_were_is_protected() -> None:
    repair = Repair(suite=Suite(arguments=("pkg/tests/test_a.py",)))
    assert protected_among(["pkg", "pkg/b.py"], repair, ["pkg/tests/test_a.py", "pkg/b.py"]) == ["pkg"]


def test_bugs_take_turns_among_operators_and_files() -> None:
    clean = tiny.clean("ledger")
    found = list(mutants(clean, source_files(clean, tiny.SUITE), limit=20))
    assert found == list(mutants(clean, source_files(clean, tiny.SUITE), limit=20)), "the same every time"
    assert len({edit.operator for _, edit in found}) >= 8 and len({path for path, _ in found}) == 2


def test_a_planted_bug_is_repaired_by_its_patch() -> None:
    clean = tiny.clean("tables")
    source = Source(builder="palestra.tasks.swe.tiny:clean", args={"package": "tables"})
    path, edit = next(mutants(clean, source_files(clean, tiny.SUITE), limit=1))
    repair = planted_repair(source, clean, tiny.SUITE, path, edit)
    assert tree_of(repair) == mutated(clean, path, edit) != clean and paths_of(repair.patch) == [path]


def test_swe_tiny_is_split_by_package_and_its_bugs_are_where_they_should_be() -> None:
    tasks = load_tasks("swe-tiny")
    assert len(tasks) >= 60 and len({t.data["kind"] for t in tasks}) >= 8
    by_split = {t.data["repo"]: t.split for t in tasks}
    assert by_split == tiny.PACKAGES and {"train", "dev", "test"} == set(by_split.values())
    for task in tasks[::9]:
        repair = repair_of(task)
        found = tree_of(repair)
        assert found is not None and found != tiny.clean(repair.repo)
        assert repair.fail_to_pass and not {*repair.fail_to_pass} & {*repair.pass_to_pass}
        assert repair.patch.strip() and repair.patch not in task.instruction


def test_a_task_of_another_family_says_what_is_wrong() -> None:
    task = load_tasks("sql-tiny")[0]
    with pytest.raises(TaskError, match="is no repair task: .*gold_sql: Extra inputs"):
        repair_of(task)
