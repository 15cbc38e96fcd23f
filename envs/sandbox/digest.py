"""One name for the state of a file tree, from descriptors alone: nothing inside can lead the reader out of it."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

MAX_DEPTH = 200
MAX_REMEMBERED = 100_000
SETTLED_NS = 100_000_000
"""A file that changed less than this ago may change again within the same tick of the file system's clock."""


class TreeDigest:
    """SHA-256 of trees. Remembers contents by inode, size and times, so that the next look reads only what changed.

    The change time cannot be set from inside, so a file whose contents change is read again.
    """

    def __init__(self) -> None:
        self._contents: dict[tuple[int, ...], bytes] = {}

    def of(self, directory: int, ignore: Sequence[str] = ()) -> str:
        """Digest of what is below an open directory. Links are not followed."""
        digest = hashlib.sha256()
        for line in self._lines(directory, "", tuple(ignore), 0):
            digest.update(len(line).to_bytes(4, "big") + line)
        return digest.hexdigest()

    def _lines(self, directory: int, prefix: str, ignore: tuple[str, ...], depth: int) -> Iterator[bytes]:
        if depth > MAX_DEPTH:
            raise RecursionError(f"directories nested deeper than {MAX_DEPTH}: {prefix[:80]}...")
        for name in sorted(os.listdir(directory)):
            path = prefix + name
            if any(fnmatchcase(name, pattern) or fnmatchcase(path, pattern) for pattern in ignore):
                continue
            info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            yield os.fsencode(path) + b"\0" + self._entry(directory, name, info)
            if stat.S_ISDIR(info.st_mode):
                below = os.open(
                    name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory
                )
                try:
                    yield from self._lines(below, path + "/", ignore, depth + 1)
                finally:
                    os.close(below)

    def _entry(self, directory: int, name: str, info: os.stat_result) -> bytes:
        if stat.S_ISLNK(info.st_mode):
            return b"link " + os.fsencode(os.readlink(name, dir_fd=directory))
        if not stat.S_ISREG(info.st_mode):
            return b"kind %o" % stat.S_IFMT(info.st_mode)
        return (b"exec " if info.st_mode & 0o100 else b"file ") + self._content(directory, name, info)

    def _content(self, directory: int, name: str, info: os.stat_result) -> bytes:
        key = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
        found = self._contents.get(key)
        if found is None:
            found = _hash_file(directory, name)
            if time.time_ns() - info.st_ctime_ns > SETTLED_NS:
                self._remember(key, found)
        return found

    def _remember(self, key: tuple[int, ...], content: bytes) -> None:
        if len(self._contents) >= MAX_REMEMBERED:
            self._contents.clear()
        self._contents[key] = content


def _hash_file(directory: int, name: str) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    with os.fdopen(os.open(name, flags, dir_fd=directory), "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
