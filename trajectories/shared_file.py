"""Files that many open rollouts append to, so that none of them costs a file of its own.

A rollout stays with the file in which it began. A file is removed when its last rollout has ended; rollouts that begin
when it has grown large go to the next one.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from pathlib import Path

from palestra.trajectories.disk import ReportingFull, sync_directory, write_at
from palestra.trajectories.errors import StoreError

_LARGE_BYTES = 16 << 20


class SharedFile:
    """One of them, open for as long as a rollout in it is. Safe from any thread."""

    def __init__(self, path: Path, *, fsync: bool) -> None:
        self.path, self.size = path, 0
        self._fsync, self._begun, self._open = fsync, 0, 0
        self._lock = threading.Lock()
        with ReportingFull(path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        if fsync:
            sync_directory(path.parent)

    def begin(self) -> int:
        """The number of one more rollout, unique in this file."""
        self._begun, self._open = self._begun + 1, self._open + 1
        return self._begun

    def append(self, data: bytes) -> None:
        """Write `data`, whole or not at all. Raises StoreFullError, and StoreError after `close`."""
        with self._lock, ReportingFull(self.path):
            if self._fd < 0:
                raise StoreError(f"{self.path} belongs to a store that was closed")
            write_at(self._fd, data, self.size)
            if self._fsync:
                os.fdatasync(self._fd)
            self.size += len(data)

    def end(self) -> bool:
        """A rollout has ended; returns whether it was the last one, and the file is gone."""
        self._open -= 1
        if not self._open:
            self.close()
            self.path.unlink(missing_ok=True)
        return not self._open

    def close(self) -> None:
        """Leave the file as it is. Calling it twice is fine."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1


class SharedFiles:
    """Those in one directory, one of which takes new rollouts."""

    def __init__(self, directory: Path, suffix: str, *, fsync: bool) -> None:
        self._directory, self._suffix, self._fsync = directory, suffix, fsync
        self._files: set[SharedFile] = set()
        self._current: SharedFile | None = None
        self._lock = threading.Lock()

    def begin(self) -> tuple[SharedFile, int]:
        """A file for a new rollout, and its number there. Raises StoreFullError."""
        with self._lock:
            if self._current is None or self._current.size > _LARGE_BYTES:
                name = f"{time.time_ns():020d}-{secrets.token_hex(4)}{self._suffix}"
                self._current = SharedFile(self._directory / name, fsync=self._fsync)
                self._files.add(self._current)
            return self._current, self._current.begin()

    def end(self, file: SharedFile) -> bool:
        """A rollout in `file` has ended; returns whether the file is gone."""
        with self._lock:
            gone = file.end()
            if gone:
                self._files.discard(file)
                self._current = None if self._current is file else self._current
            return gone

    def close(self) -> None:
        """Close all files and leave them."""
        with self._lock:
            for file in self._files:
                file.close()
