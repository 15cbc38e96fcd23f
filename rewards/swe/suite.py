"""Running the tests of a repair on a machine, and reading what happened from a report outside the tree."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palestra.rewards.swe.machine import PRIVATE, Machine, MachineError
from palestra.rewards.swe.worktree import PatchError, apply, changed_paths, restore_tests
from palestra.tasks.swe.repair import Repair

RUNNER = Path(__file__).parent / "run_tests.py"
MAX_REPORT_BYTES = 64 * 2**20
_GRACE_S = 15.0
_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """What became of the tests. Without a report `reported` is False and the rest is empty."""

    reported: bool
    finished: bool = False
    timed_out: bool = False
    exit_status: int | None = None
    statuses: dict[str, str] = field(default_factory=dict)
    """Status by test id, as in `run_tests.py`."""
    messages: dict[str, str] = field(default_factory=dict)
    """The end of what each test that failed says."""
    tampering: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    """Paths of tests and configuration that the diff had changed."""
    log: str = ""
    """What was printed; nothing is decided by it."""


def run_suite(machine: Machine, repair: Repair, patch: bytes) -> SuiteRun:
    """Apply a diff to the broken tree of a fresh machine, put the tests back, and run them.

    Raises PatchError where the diff does not apply, MachineError where ours fails.
    """
    apply(machine, repair, patch)
    undone = restore_tests(machine, repair)
    changed = changed_paths(machine, repair)
    _apply_tests(machine, repair)
    return _run(machine, repair, tuple(undone), changed)


def _apply_tests(machine: Machine, repair: Repair) -> None:
    try:
        apply(machine, repair, repair.test_patch.encode("utf-8", "surrogateescape"))
    except PatchError as error:
        raise MachineError(f"the test patch of the task does not apply: {error}") from error


def _run(machine: Machine, repair: Repair, undone: tuple[str, ...], changed: list[str]) -> SuiteRun:
    suite = repair.suite
    machine.write(f"{PRIVATE}/run_tests.py", RUNNER.read_bytes(), user="root")
    machine.write(f"{PRIVATE}/pytest.ini", b"[pytest]\n", user="root")
    config = f"{repair.workdir}/{suite.config}" if suite.config else f"{PRIVATE}/pytest.ini"
    report = "/tmp/.palestra.report.json"
    job = {
        "workdir": repair.workdir,
        "report": report,
        "python_path": list(suite.python_path),
        "config": config,
        "arguments": list(suite.arguments),
        "plugins": list(suite.plugins),
        "changed": changed,
        "timeout_s": suite.timeout_s,
        "test_timeout_s": suite.test_timeout_s,
    }
    done = machine.exec(
        [
            "env",
            "-i",
            *(f"{k}={v}" for k, v in _ENV.items()),
            suite.python,
            "-S",
            "-s",
            f"{PRIVATE}/run_tests.py",
        ],
        cwd="/",
        timeout_s=suite.timeout_s + _GRACE_S,
        stdin=json.dumps(job).encode(),
    )
    log = (done.stdout + done.stderr).decode("utf-8", "replace")
    try:
        body: dict[str, Any] = json.loads(machine.read(report, MAX_REPORT_BYTES))
    except (OSError, ValueError):
        return SuiteRun(False, timed_out=done.timed_out, undone=undone, log=log)
    return SuiteRun(
        reported=bool(body["started"]),
        finished=body["finished"],
        timed_out=body["timed_out"],
        exit_status=body["exit_status"],
        statuses=body["statuses"],
        messages=body["messages"],
        tampering=tuple(body["tampering"]),
        undone=undone,
        log=log,
    )
