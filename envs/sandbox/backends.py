"""Backends by name, so that a setting can choose one."""

from __future__ import annotations

import importlib

from palestra.envs.sandbox.base import Backend
from palestra.envs.sandbox.errors import SandboxSetupError

BACKENDS = {
    "namespace": "palestra.envs.sandbox.namespace:NamespaceBackend",
    "docker": "palestra.envs.sandbox.docker:DockerBackend",
}


def open_backend(name: str = "namespace") -> Backend:
    """Start a backend. Raises ValueError for an unknown name, SandboxSetupError where this machine cannot."""
    if name not in BACKENDS:
        raise ValueError(f"no sandbox backend {name!r}; there are {', '.join(BACKENDS)}")
    module, _, attribute = BACKENDS[name].partition(":")
    try:
        made: Backend = getattr(importlib.import_module(module), attribute)()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "docker":
            raise
        raise SandboxSetupError("the docker SDK is not installed: pip install 'palestra[docker]'") from error
    return made
