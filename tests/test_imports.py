"""The public names: what a package says that it has, it has."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

import palestra


def packages() -> list[str]:
    found = pkgutil.walk_packages(palestra.__path__, "palestra.")
    return sorted(module.name for module in found if module.ispkg)


def public(name: str) -> tuple[ModuleType, list[str]]:
    module = importlib.import_module(name)
    return module, list(getattr(module, "__all__", []))


def test_some_packages_have_public_names() -> None:
    assert {"palestra.cli", "palestra.rollouts.harnesses", "palestra.training.advantages"} <= {
        name for name in packages() if public(name)[1]
    }


@pytest.mark.parametrize("name", packages())
def test_every_public_name_exists_once(name: str) -> None:
    module, names = public(name)
    assert [n for n in names if not hasattr(module, n)] == []
    assert len(names) == len(set(names))
