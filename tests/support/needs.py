"""A test that needs a service says so here: without it the test is skipped, and on CI it fails."""

from __future__ import annotations

import os

import pytest


def need(found: object, what: str) -> None:
    """Go on if `found`; else skip, or fail where CI=true. `what` says what is missing and how to get it."""
    if found:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"missing on CI: {what}", pytrace=False)
    pytest.skip(f"missing: {what}")
