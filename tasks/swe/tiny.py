"""`swe-tiny`: planted bugs in seven small packages of our own, split by package.

`swe_tiny.json` holds the tests of each package, and the edits that were planted with the tests that catch them. It is
written by `palestra.envs.swe_make.tiny_manifest`, which plants bugs of every kind and runs the tests.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palestra.tasks.errors import TaskError
from palestra.tasks.files import read_json
from palestra.tasks.swe.make import mutated
from palestra.tasks.swe.mutate import Edit
from palestra.tasks.swe.repair import Repair, Source, Suite, make_task
from palestra.tasks.swe.tree import Tree, from_directory
from palestra.tasks.task import Budget, Split, Task, TaskSet

PACKAGES: dict[str, Split] = {
    "caches": "train",
    "graphs": "train",
    "intervals": "train",
    "ledger": "train",
    "tables": "train",
    "config": "dev",
    "versions": "test",
}
MANIFEST = Path(__file__).parent / "swe_tiny.json"
_BUDGET = Budget(turns=30, tokens=65_536, wall_s=600, command_s=20)
SUITE = Suite(arguments=("tests",), timeout_s=60, test_timeout_s=3)


@functools.cache
def clean(package: str) -> Tree:
    """One of our packages as it should be."""
    if package not in PACKAGES:
        raise TaskError(f"there is no package {package!r}; there are {', '.join(PACKAGES)}")
    return from_directory(Path(__file__).parent / "packages" / package)


def build(package: str, path: str, edit: Mapping[str, Any]) -> Tree:
    """One of our packages with one bug planted."""
    return mutated(clean(package), path, Edit(**edit))


@functools.cache
def load() -> TaskSet:
    """One task per planted bug."""
    manifest = read_json(MANIFEST)
    return TaskSet("swe-tiny", [_task(bug, manifest["tests"][bug["package"]]) for bug in manifest["bugs"]])


def candidate(package: str, path: str, edit: Edit) -> Repair:
    """The repair of one planted bug; which tests catch it is not known yet."""
    fields = {name: getattr(edit, name) for name in ("operator", "start", "end", "old", "new")}
    args = {"package": package, "path": path, "edit": fields}
    broken = mutated(clean(package), path, edit)
    return Repair(
        source=Source(builder="palestra.tasks.swe.tiny:build", args=args),
        suite=SUITE,
        patch=text_diff(path, broken.text(path), clean(package).text(path)),
        kind=edit.operator,
        repo=package,
    )


def text_diff(path: str, before: str, after: str) -> str:
    """A git diff of one text file; both texts end in a line end."""
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    return f"diff --git a/{path} b/{path}\n" + "".join(lines)


def _task(record: Mapping[str, Any], tests: Sequence[str]) -> Task:
    package, edit, caught = record["package"], Edit(**record["edit"]), record["fail_to_pass"]
    ids = {"fail_to_pass": caught, "pass_to_pass": [t for t in tests if t not in caught]}
    repair = Repair.model_validate(candidate(package, record["path"], edit).model_dump() | ids)
    return make_task(
        f"swe-tiny/{package}/{record['name']}", PACKAGES[package], _instruction(record), repair, _BUDGET
    )


def _instruction(record: Mapping[str, Any]) -> str:
    failing = "\n".join(f"  {test}" for test in record["fail_to_pass"][:3])
    more = len(record["fail_to_pass"]) - 3
    others = f"\n  and {more} more" if more > 0 else ""
    said = f"\n\n{record['failure']}" if record["failure"] else ""
    return (
        f"The Python package {record['package']} in the current directory has a bug. These tests fail:\n\n"
        f"{failing}{others}{said}\n\n"
        "Repair the package, not the tests: python3 -m pytest runs them. Submit when they pass."
    )
