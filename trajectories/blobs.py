"""Attachments and raw bodies, kept once each under the SHA-256 of their content: blobs/ab/abcdef..."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from palestra.trajectories.disk import ReportingFull, replace
from palestra.trajectories.errors import CorruptError, NotFoundError

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """Content-addressed files below `directory`. Safe from any thread."""

    def __init__(self, directory: Path, *, fsync: bool) -> None:
        self._directory, self._fsync = directory, fsync

    def put(self, data: bytes) -> str:
        """Keep `data`; returns its SHA-256 in 64 hex digits. Raises StoreFullError."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self._path(sha256)
        if not path.exists():
            with ReportingFull(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, data, fsync=self._fsync)
        return sha256

    def get(self, sha256: str) -> bytes:
        """The blob of this name. Raises NotFoundError, and CorruptError where the content does not match."""
        if not _SHA256.fullmatch(sha256):
            raise NotFoundError(f"{sha256!r} names no blob: give the 64 lower-case hex digits of a SHA-256")
        path = self._path(sha256)
        try:
            data = path.read_bytes()
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no blob {sha256} in {self._directory}") from error
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptError(f"{path} does not match its name: restore it from a copy")
        return data

    def _path(self, sha256: str) -> Path:
        return self._directory / sha256[:2] / sha256
