"""Writing to a disk that may be full or may lose power: whole or not at all.

The one place where an operating-system error that means "no space" becomes StoreFullError. Others fly.
"""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from palestra.trajectories.errors import StoreFullError

_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}


class ReportingFull:
    """Turn ENOSPC, EFBIG and EDQUOT into StoreFullError, naming `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.errno in _FULL:
            why = f"no space to write {self._path} ({error.strerror})"
            why += ". What was committed is safe: free space, try again"
            raise StoreFullError(error.errno, why) from error


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`, or cut the file back to `offset` and raise."""
    view, done = memoryview(data), 0
    try:
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)
    finally:
        if done < len(view):
            os.ftruncate(fd, offset)


def replace(path: Path, data: bytes, *, fsync: bool) -> None:
    """Make `path` hold exactly `data`, never a part of it. Raises StoreFullError."""
    with ReportingFull(path):
        fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp-")
        try:
            try:
                write_at(fd, data, 0)
                if fsync:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    if fsync:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a loss of power."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
