"""Indices on disk: built once in a folder beside, then moved into place; two processes may build the same one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def built(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, filled by `build` unless it is there already."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        build(made)
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process was quicker
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder
