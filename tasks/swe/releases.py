"""`swe-releases`: the change between two releases of small packages on PyPI, with the tests that the newer brought.

The sources are downloaded when the set is loaded (`sources.py`); `swe_releases.json` says which releases, by version
and SHA-256, and which tests decide. It is written by `palestra.envs.swe_make.release_record`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from palestra.tasks.errors import TaskError
from palestra.tasks.files import read_json
from palestra.tasks.swe.make import Candidate, from_releases
from palestra.tasks.swe.repair import Repair, Suite, make_task
from palestra.tasks.swe.sources import sha256_of
from palestra.tasks.task import Task, TaskSet

MANIFEST = Path(__file__).parent / "swe_releases.json"


@functools.cache
def load(only: str = "") -> TaskSet:
    """One task per pair of releases; `only` names packages, separated by commas. Raises TaskError."""
    wanted = set(only.split(",")) if only else None
    records = [r for r in read_json(MANIFEST) if wanted is None or r["name"] in wanted]
    return TaskSet("swe-releases", [_task(record) for record in records])


def grouped(tests: Iterable[str]) -> dict[str, list[str]]:
    """Test ids by their file; the inverse of `flat`."""
    found: dict[str, list[str]] = {}
    for test in sorted(tests):
        file, _, rest = test.partition("::")
        found.setdefault(file, []).append(rest)
    return found


def flat(tests: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Test ids from names by file."""
    return (f"{file}::{rest}" for file, names in tests.items() for rest in names)


def instruction(candidate: Candidate, repair: Repair, failure: str) -> str:
    """What the agent is told: what the author said of the change, and how the first failing test fails."""
    names = "\n".join(f"  {test}" for test in repair.fail_to_pass[:10])
    rest = len(repair.fail_to_pass) - 10
    names += f"\n  and {rest} more" if rest > 0 else ""
    said = f"The change is described so:\n\n{candidate.statement}\n\n" if candidate.statement else ""
    return (
        f"The current directory holds the source of {repair.repo}. Make the change that is missing.\n\n{said}"
        f"These tests, which you may not have, fail now and must pass:\n\n{names}\n\n"
        f"{failure}\n\nTests that pass now must go on passing. Submit when you are done."
    )


def _task(record: Mapping[str, Any]) -> Task:
    name, old, new = record["name"], record["old"], record["new"]
    for version in (old, new):
        if (found := sha256_of(name, version)) != record["sha256"][version]:
            raise TaskError(
                f"{name} {version} has SHA-256 {found}, the task needs {record['sha256'][version]}"
            )
    suite = Suite.model_validate(record["suite"])
    candidate = from_releases(name, old, new, suite)
    ids = {"fail_to_pass": tuple(record["fail_to_pass"]), "pass_to_pass": tuple(flat(record["pass_to_pass"]))}
    repair = candidate.repair.model_copy(update=ids)
    return make_task(
        f"swe-releases/{name}-{new}", "test", instruction(candidate, repair, record["failure"]), repair
    )
