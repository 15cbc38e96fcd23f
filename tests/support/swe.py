"""A repair task small enough for every test: a planted bug in the package `intervals`, and machines."""

from __future__ import annotations

import functools

from needs import need
from palestra.envs.machines import Workshop, workshop
from palestra.envs.sandbox import images
from palestra.tasks.swe import tiny
from palestra.tasks.swe.mutate import Edit, edits
from palestra.tasks.swe.repair import Repair, make_task
from palestra.tasks.swe.tree import File, Tree, diff
from palestra.tasks.task import Task

PATH = "intervals/core.py"
BROKEN = "tests/test_core.py::test_empty_and_reversed_intervals_are_dropped"
KEPT = ("tests/test_core.py::test_union", "tests/test_text.py::test_a_range_of_one")


def machines() -> Workshop:
    """The workshop of this process, where there is an image with pytest."""
    need(images.built("python"), "the sandbox image python: run tests/services/sandbox.sh as root")
    return workshop("namespace")


@functools.cache
def planted() -> Edit:
    """The bug: empty intervals are kept."""
    found = edits(tiny.clean("intervals").text(PATH))
    return next(e for e in found if e.old == "end <= start" and e.new == "end < start")


def repair() -> Repair:
    """The task's data."""
    update = {"fail_to_pass": (BROKEN,), "pass_to_pass": KEPT}
    return tiny.candidate("intervals", PATH, planted()).model_copy(update=update)


def task(**changes: object) -> Task:
    """The task; `changes` replace fields of its data."""
    return make_task("intervals-bug", "test", "Repair it.", repair().model_copy(update=changes))


def broken_tree() -> Tree:
    """What the agent finds."""
    return tiny.build(
        "intervals", PATH, {f: getattr(planted(), f) for f in ("operator", "start", "end", "old", "new")}
    )


def patch(changes: dict[str, str | bytes | File | None]) -> str:
    """The diff of an agent that wrote these files; None deletes one."""
    tree = broken_tree()
    written = {p: _file(c) for p, c in changes.items() if c is not None}
    return diff(tree, tree.without(p for p, c in changes.items() if c is None).replaced(written))


def appended(code: str, path: str = PATH) -> str:
    """The diff of an agent that added code to the end of a file."""
    return patch({path: broken_tree().text(path) + code})


def _file(contents: str | bytes | File) -> File:
    if isinstance(contents, File):
        return contents
    return File(contents.encode() if isinstance(contents, str) else contents)
