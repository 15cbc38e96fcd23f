"""Sandboxes of every backend, for the tests that hold all of them to one contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from palestra.envs.sandbox.base import Backend, Sandbox
from sandboxes import SMALL, backend, base_image

KINDS = ["namespace", "docker"]


@pytest.fixture(scope="module", params=[pytest.param(k, marks=pytest.mark.xdist_group(k)) for k in KINDS])
def maker(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A backend of each kind."""
    with backend(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def shared(maker: Backend) -> Iterator[Sandbox]:
    """One sandbox for tests that leave nothing behind that another could see."""
    with maker.create(base_image(), SMALL) as sandbox:
        yield sandbox


@pytest.fixture
def fresh(maker: Backend) -> Iterator[Sandbox]:
    """A sandbox that a test may ruin."""
    with maker.create(base_image(), SMALL) as sandbox:
        yield sandbox


@pytest.fixture(params=["agent", "root"])
def user(request: pytest.FixtureRequest) -> str:
    """Whom a command runs as."""
    return str(request.param)
