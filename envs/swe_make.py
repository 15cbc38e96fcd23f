"""Making repair tasks: candidates of `palestra.tasks.swe.make`, with the deciding tests found by running them."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

from palestra.envs.machines import Workshop
from palestra.rewards.swe.derive import Derived, RejectedError, compare, derive, run_whole
from palestra.tasks.swe import tiny
from palestra.tasks.swe.make import (
    Candidate,
    from_releases,
    guess_suite,
    mutants,
    planted_repair,
    source_files,
)
from palestra.tasks.swe.mutate import Edit
from palestra.tasks.swe.releases import grouped, instruction
from palestra.tasks.swe.repair import Repair, Source, Suite, make_task, tree_of
from palestra.tasks.swe.sources import sha256_of
from palestra.tasks.swe.tree import Tree
from palestra.tasks.task import Split, Task

MAX_FAILURE_CHARS = 600
MAX_PASS_SHARE = 0.9
"""A planted bug that more than this share of the tests catches breaks everything; it is no task."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def task_of(
    candidate: Candidate, task_id: str, workshop: Workshop, split: Split = "test", repeats: int = 3
) -> Task:
    """A validated task. Raises RejectedError, and what the workshop raises."""
    derived = derive(candidate.repair, workshop.machine, repeats)
    told = instruction(candidate, derived.repair, failure(derived))
    return make_task(task_id, split, told, derived.repair)


def failure(derived: Derived) -> str:
    """What the first deciding test says when it fails, without addresses of objects."""
    message = next(iter(derived.failures.values()), "")
    lines = [line[1:].strip() for line in message.splitlines() if line.startswith("E ")]
    return _ADDRESS.sub("", "\n".join(lines))[:MAX_FAILURE_CHARS].strip()


def planted(
    tree: Tree,
    suite_of: Callable[[str, Edit], Repair],
    clean: Repair,
    workshop: Workshop,
    wanted: int,
    seed: int = 0,
) -> Iterator[tuple[str, Edit, Derived]]:
    """Planted bugs that the tests of a clean tree catch: (path, edit, which tests catch it), at most `wanted`.

    `clean` is a repair whose tree is the clean one; `suite_of` makes the candidate of an edit.
    Raises RejectedError where the tests of the clean tree do not run.
    """
    good = [run_whole(clean, workshop.machine, b"") for _ in range(2)]
    kept = 0
    for path, edit in mutants(tree, source_files(tree, clean.suite), limit=10 * wanted, seed=seed):
        if kept == wanted:
            return
        repair = suite_of(path, edit)
        try:
            derived = compare(repair, good, [run_whole(repair, workshop.machine, b"")])
        except RejectedError:
            continue
        if _is_sound(derived, len(good[0].statuses)):
            kept += 1
            yield path, edit, derived


def bug_tasks(
    source: Source, name: str, workshop: Workshop, wanted: int, suite: Suite | None = None
) -> Iterator[Task]:
    """Tasks of planted bugs in a clean tree. Raises RejectedError where the tests of that tree do not run."""
    clean = Repair(source=source)
    tree = tree_of(clean)
    assert tree is not None
    clean = clean.model_copy(update={"suite": suite or guess_suite(tree)})

    def candidate(path: str, edit: Edit) -> Repair:
        return planted_repair(source, tree, clean.suite, path, edit).model_copy(update={"repo": name})

    for path, edit, derived in planted(tree, candidate, clean, workshop, wanted):
        told = instruction(Candidate(derived.repair, ""), derived.repair, failure(derived))
        yield make_task(f"{name}/{edit.operator}-{path}-{edit.start}", "train", told, derived.repair)


def tiny_manifest(workshop: Workshop, wanted: int = 13) -> dict[str, Any]:
    """The manifest of `swe-tiny`, made anew: the tests of each package, and `wanted` bugs in each."""
    tests: dict[str, list[str]] = {}
    bugs: list[dict[str, Any]] = []
    for package in tiny.PACKAGES:
        source = Source(builder="palestra.tasks.swe.tiny:clean", args={"package": package})
        clean = Repair(source=source, suite=tiny.SUITE)
        candidate = functools.partial(tiny.candidate, package)
        found = planted(tiny.clean(package), candidate, clean, workshop, wanted)
        tests[package] = sorted(run_whole(clean, workshop.machine, b"").statuses)
        bugs += [_record(package, number, *bug) for number, bug in enumerate(found)]
    return {"tests": tests, "bugs": bugs}


def release_record(name: str, old: str, new: str, workshop: Workshop, repeats: int = 3) -> dict[str, Any]:
    """An entry of the manifest of `swe-releases`. Raises RejectedError, TaskError."""
    candidate = from_releases(name, old, new)
    derived = derive(candidate.repair, workshop.machine, repeats)
    if not derived.repair.pass_to_pass:
        raise RejectedError("no test passes before and after, so nothing says what must stay as it is")
    return {
        "name": name,
        "old": old,
        "new": new,
        "sha256": {version: sha256_of(name, version) for version in (old, new)},
        "suite": derived.repair.suite.model_dump(mode="json", exclude_defaults=True),
        "failure": failure(derived),
        "fail_to_pass": derived.repair.fail_to_pass,
        "pass_to_pass": grouped(derived.repair.pass_to_pass),
    }


def _is_sound(derived: Derived, tests: int) -> bool:
    caught = len(derived.repair.fail_to_pass)
    slow = any("test timeout" in message for message in derived.failures.values())
    return caught <= MAX_PASS_SHARE * tests and not slow


def _record(package: str, number: int, path: str, edit: Edit, derived: Derived) -> dict[str, Any]:
    return {
        "name": f"{number:02d}-{edit.operator.replace('_', '-')}",
        "package": package,
        "path": path,
        "edit": dataclasses.asdict(edit),
        "fail_to_pass": derived.repair.fail_to_pass,
        "failure": failure(derived),
    }
