"""Trees are values: they survive tar, git and diffs, whatever is in them."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.tasks.errors import TaskError
from palestra.tasks.swe.tree import (
    File,
    Tree,
    diff,
    from_directory,
    from_git,
    from_tar,
    git,
    is_noise,
    paths_of,
)

TREE = Tree(
    {
        "a.py": File(b"x = 1\n"),
        "bin/run": File(b"#!/bin/sh\n", "100755"),
        "data/blob": File(bytes(range(256))),
        "link": File(b"a.py", "120000"),
        "no newline": File(b"text"),
        "empty": File(b""),
        "crlf.txt": File(b"one\r\ntwo\r\n"),
        ".gitattributes": File(b"* text=auto eol=lf\n*.py filter=lfs -diff\n"),
        ".gitignore": File(b"*\n"),
    }
)
names = st.text("abc.-", min_size=1, max_size=6).filter(lambda n: n.strip(".") and not is_noise(n))
trees = st.dictionaries(names, st.binary(max_size=40).map(File), max_size=5).map(Tree)


def applied(tree: Tree, patch: str, root: Path) -> Tree:
    """What git makes of a diff."""
    tree.write_to(root)
    if patch:
        subprocess.run(
            ["git", "apply", "--binary", "-"],
            cwd=root,
            input=patch.encode("utf-8", "surrogateescape"),
            check=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(root.parent)},
        )
    return from_directory(root)


def test_tar_round_trip_is_exact_and_deterministic() -> None:
    assert from_tar(TREE.to_tar()) == TREE and TREE.to_tar() == from_tar(TREE.to_tar()).to_tar()


def test_directory_round_trip(tmp_path: Path) -> None:
    TREE.write_to(tmp_path)
    assert from_directory(tmp_path) == TREE


def test_diff_turns_one_tree_into_the_other(tmp_path: Path) -> None:
    after = TREE.without(["a.py"]).replaced({"data/blob": File(b"\0new"), "b/c.py": File(b"y\n")})
    after = after.replaced({"bin/run": File(b"#!/bin/sh\n"), "crlf.txt": File(b"one\r\ntwo\n")})
    patch = diff(TREE, after)
    assert paths_of(patch) == ["a.py", "b/c.py", "bin/run", "crlf.txt", "data/blob"]
    assert applied(TREE, patch, tmp_path) == after


@settings(max_examples=15, deadline=None)
@given(trees, trees)
def test_any_diff_applies(tmp_path_factory: pytest.TempPathFactory, before: Tree, after: Tree) -> None:
    patch = diff(before, after)
    assert (patch == "") == (before == after)
    assert applied(before, patch, tmp_path_factory.mktemp("tree")) == after


def test_a_commit_is_a_tree_whatever_its_attributes_say(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    (repository / "kept.py").write_text("1\n")
    (repository / ".gitattributes").write_text("*.py export-ignore\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "first")
    assert list(from_git(repository, "HEAD")) == [".gitattributes", "kept.py"]
    with pytest.raises(TaskError, match="read-tree"):
        from_git(repository, "no-such-commit")


@pytest.mark.parametrize("path", ["../out", "a/../../out", "/etc/passwd"])
def test_archives_that_lead_out_are_refused(path: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(path))
    with pytest.raises(TaskError, match="leads out"):
        from_tar(buffer.getvalue())


def test_noise_is_left_out(tmp_path: Path) -> None:
    for path in (
        "a.py",
        "__pycache__/a.cpython-311.pyc",
        "b.pyc",
        ".git/HEAD",
        "sub/.git/HEAD",
        ".pytest_cache/x",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    assert list(from_directory(tmp_path)) == ["a.py"]


def test_equal_trees_have_equal_digests() -> None:
    assert TREE.digest == Tree(dict(reversed(list(TREE.items())))).digest
    assert TREE.digest != TREE.replaced({"a.py": File(b"x = 1\n", "100755")}).digest
