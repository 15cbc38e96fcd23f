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
from palestra.tasks.swe.make import Candidate, mutants, source_files
from palestra.tasks.swe.mutate import Edit
from palestra.tasks.swe.repair import Repair, Source, make_task
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
    return make_task(task_id, split, instruction(candidate, derived), derived.repair)


def instruction(candidate: Candidate, derived: Derived) -> str:
    """What the agent is told: what the author said of the change, and how the first failing tests fail."""
    repair = derived.repair
    names = "\n".join(f"  {t}" for t in repair.fail_to_pass[:10])
    rest = len(repair.fail_to_pass) - 10
    names += f"\n  and {rest} more" if rest > 0 else ""
    said = f"The change is described so:\n\n{candidate.statement}\n\n" if candidate.statement else ""
    return (
        f"The current directory holds the source of {repair.repo}. Make the change that is missing.\n\n{said}"
        f"These tests, which you may not have, fail now and must pass:\n\n{names}\n\n"
        f"{failure(derived)}\n\nTests that pass now must go on passing. Submit when you are done."
    )


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
