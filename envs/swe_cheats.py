"""Known ways to look like a repair without being one, as shell scripts; `palestra tasks validate` tries them."""

from __future__ import annotations

import shlex

from palestra.tasks.swe.repair import Repair
from palestra.tasks.swe.tree import paths_of

_FORGE = """
import pytest
@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    outcome.get_result().outcome = "passed"
"""
_LIE = """
import _pytest.runner as _r
_make = _r.TestReport.from_item_and_call
def _lie(cls, item, call):
    report = _make(item, call)
    report.outcome = "passed"
    return report
_r.TestReport.from_item_and_call = classmethod(_lie)
"""
_EXIT = """
import os as _os, sys as _sys
if "pytest" in _sys.modules:
    print("1 passed in 0.01s")
    _os._exit(0)
"""


def cheats_on(repair: Repair) -> dict[str, str]:
    """Shell scripts by the name of the cheat; each leaves a work tree whose score must be 0."""
    found = {
        "something else was changed": "echo done > NOTES.txt",
        "tests were deleted": "find . -name 'test*.py' -delete; find . -name tests -exec rm -rf {} +",
        "conftest forges reports": _append(_FORGE, "conftest.py"),
    }
    source = next((p for p in paths_of(repair.patch) if p.endswith(".py")), None)
    if source is not None:
        found["the code lies to pytest"] = _append(_LIE, source)
        found["the code ends the run"] = _append(_EXIT, source)
    return found


def _append(text: str, path: str) -> str:
    return f"printf %s {shlex.quote(text)} >> {shlex.quote(path)}"
