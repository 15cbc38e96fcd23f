"""Where sandboxes keep what they build, and how two processes that build the same thing wait for one another."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def cache_dir(*parts: str) -> Path:
    """A directory below ~/.cache/palestra (`XDG_CACHE_HOME` counts), made if missing."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = base.joinpath("palestra", *parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`.lock; waits for other processes."""
    with open(f"{path}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
