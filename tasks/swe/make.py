"""Candidates for repair tasks: from a commit that fixes something, from two releases, and from planted bugs.

A candidate has a broken tree, the change that repairs it, and the change to its tests; which tests decide is found by
running them (`palestra.rewards.swe.derive`).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palestra.tasks.errors import TaskError
from palestra.tasks.swe.mutate import Edit, edits
from palestra.tasks.swe.repair import Repair, Source, Suite, is_protected, tree_of
from palestra.tasks.swe.sources import git_tree, release_tree
from palestra.tasks.swe.tree import File, Tree, diff, git

NEWS = ("change", "history", "news", "release")
CONFIGS: tuple[tuple[str, str], ...] = (
    ("pytest.ini", ""),
    ("pyproject.toml", "[tool.pytest.ini_options]"),
    ("tox.ini", "[pytest]"),
    ("setup.cfg", "[tool:pytest]"),
)
"""Files that configure pytest, with what they hold then; the first that is there counts."""
MAX_NEWS_CHARS = 4000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A repair task whose deciding tests are not known yet, with what may be said to the agent."""

    repair: Repair
    statement: str


def from_commit(repository: Path, commit: str, suite: Suite | None = None) -> Candidate:
    """The change of one commit; the tree before it is broken. The commit's message is the statement.

    Raises TaskError where there is no such commit, or where it changes nothing but tests.
    """
    fixed = git(repository, "rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
    broken = git(repository, "rev-parse", "--verify", f"{fixed}^").decode().strip()
    source = Source(
        builder="palestra.tasks.swe.sources:git_tree", args={"repository": str(repository), "commit": broken}
    )
    message = git(repository, "show", "-s", "--format=%B", fixed).decode("utf-8", "replace").strip()
    before, after = git_tree(str(repository), broken), git_tree(str(repository), fixed)
    repair = _repair(source, before, after, suite, kind="commit", repo=repository.name.removesuffix(".git"))
    return Candidate(repair.model_copy(update={"base_commit": broken, "extra": {"commit": fixed}}), message)


def from_releases(name: str, old: str, new: str, suite: Suite | None = None) -> Candidate:
    """The change between two releases of a package on PyPI. What its change log says of the newer is the statement.

    Raises TaskError where a release cannot be had, or where nothing but tests differs.
    """
    before, after = release_tree(name, old), release_tree(name, new)
    args = {"name": name, "version": old}
    source = Source(builder="palestra.tasks.swe.sources:release_tree", args=args)
    repair = _repair(source, before, after, suite, kind="release", repo=name)
    return Candidate(repair.model_copy(update={"base_commit": old}), news(before, after))


def mutants(tree: Tree, paths: Iterable[str], limit: int, seed: int = 0) -> Iterator[tuple[str, Edit]]:
    """(path, edit): planted bugs in files of a clean tree, drawn so that operators and files take turns."""
    rng = random.Random(seed)
    piles: dict[tuple[str, str], list[tuple[str, Edit]]] = {}
    for path in paths:
        for edit in edits(tree.text(path)):
            piles.setdefault((edit.operator, path), []).append((path, edit))
    for pile in piles.values():
        rng.shuffle(pile)
    order = sorted(piles)
    rng.shuffle(order)
    drawn = 0
    while order and drawn < limit:
        for key in list(order):
            yield piles[key].pop()
            drawn += 1
            if not piles[key]:
                order.remove(key)
            if drawn == limit:
                return


def mutated(tree: Tree, path: str, edit: Edit) -> Tree:
    """The tree with one bug planted. Raises ValueError where the file is not what the edit was made for."""
    return tree.replaced({path: File(edit.apply(tree.text(path)).encode(), tree[path].mode)})


def planted_tree(source: Mapping[str, Any], path: str, edit: Mapping[str, Any]) -> Tree:
    """The tree of another source with one bug planted, for `Repair.source`."""
    clean = tree_of(Repair(source=Source.model_validate(source)))
    assert clean is not None
    return mutated(clean, path, Edit(**edit))


def planted_repair(source: Source, tree: Tree, suite: Suite, path: str, edit: Edit) -> Repair:
    """The candidate of one planted bug in a clean tree that `source` builds."""
    args = {"source": source.model_dump(), "path": path, "edit": dataclasses.asdict(edit)}
    return Repair(
        source=Source(builder="palestra.tasks.swe.make:planted_tree", args=args),
        suite=suite,
        patch=diff(mutated(tree, path, edit), tree),
        kind=edit.operator,
    )


def source_files(tree: Tree, suite: Suite) -> list[str]:
    """The Python files of a tree that are not tests, documents or packaging."""
    apart = ("docs/", "doc/", "examples/", "benchmarks/")
    repair = Repair(suite=suite)
    return [
        p
        for p in tree
        if p.endswith(".py") and p != "setup.py" and not p.startswith(apart) and not is_protected(p, repair)
    ]


def guess_suite(tree: Tree) -> Suite:
    """How the tests of a tree most likely run: where they are, what configures them, where the package is."""
    config = next((name for name, mark in CONFIGS if name in tree and mark in tree.text(name)), "")
    folders = [f for f in ("tests", "test", "testing") if any(p.startswith(f + "/") for p in tree)]
    tests = folders[:1] or sorted(p for p in tree if is_test_file(p))
    if not tests:
        raise TaskError("the tree has no tests: no folder tests or test, and no file test_*.py")
    path = ("src", ".") if any(p.startswith("src/") and p.endswith(".py") for p in tree) else (".",)
    return Suite(arguments=tuple(tests), config=config, python_path=path)


def is_test_file(path: str) -> bool:
    """Whether pytest would take a file for tests by its name."""
    name = path.rpartition("/")[2]
    return name.endswith(".py") and (name.startswith("test") or name.endswith("_test.py"))


def news(before: Tree, after: Tree) -> str:
    """The lines that the newer change log has and the older has not; empty without a change log."""
    for path in after:
        if "/" not in path and any(word in path.lower() for word in NEWS):
            old = set(before.text(path).splitlines()) if path in before else set()
            added = [line for line in after.text(path).splitlines() if line not in old]
            return "\n".join(added).strip()[:MAX_NEWS_CHARS]
    return ""


def _repair(source: Source, before: Tree, after: Tree, suite: Suite | None, kind: str, repo: str) -> Repair:
    """The change between two trees, split into that of the code and that of its tests."""
    bare = Repair(source=source, suite=suite or guess_suite(after), kind=kind, repo=repo)
    tests = {p for p in {*before, *after} if is_protected(p, bare)}
    patch = diff(before, _mixed(before, after, lambda p: p not in tests))
    if not patch:
        raise TaskError(f"{repo}: nothing but tests differs between the two trees")
    test_patch = diff(before, _mixed(before, after, lambda p: p in tests))
    return bare.model_copy(update={"patch": patch, "test_patch": test_patch})


def _mixed(before: Mapping[str, File], after: Mapping[str, File], take: Callable[[str], bool]) -> Tree:
    """`after` where `take(path)` is true, `before` elsewhere."""
    return Tree(
        {p: f for p, f in before.items() if not take(p)} | {p: f for p, f in after.items() if take(p)}
    )
