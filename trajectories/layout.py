"""What a store's directory must look like: who may write, and which schema it has."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

from palestra.trajectories.disk import ReportingFull, replace
from palestra.trajectories.errors import CorruptError, NoStoreError, SchemaError, StoreLockedError

SCHEMA = 1
META, INDEX, JOURNAL = "store.json", "index.sqlite", "journal"


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Be the only writer of the store; its directory is made where there is none. Raises StoreLockedError."""
    with ReportingFull(root):
        root.mkdir(parents=True, exist_ok=True)
    path = root / "writer.lock"
    with path.open("a+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = file.read().decode() or "another process"
            raise StoreLockedError(
                f"{root} is open for writing by {holder}: end it first, or open with write=False to read"
            ) from error
        with ReportingFull(path):
            file.truncate(0)
            file.write(f"process {os.getpid()}".encode())
        yield


def create(root: Path, fsync: bool) -> None:
    """Lay out an empty store where there is none. Raises CorruptError and StoreFullError."""
    with ReportingFull(root):
        (root / "segments").mkdir(exist_ok=True)
        (root / "blobs").mkdir(exist_ok=True)
        (root / JOURNAL).mkdir(exist_ok=True)
    if not (root / META).exists():
        if any((root / "segments").iterdir()):
            raise CorruptError(f'{root / META} is lost: write {{"schema": {SCHEMA}}} into it')
        replace(root / META, json.dumps({"schema": SCHEMA}).encode(), fsync=fsync)


def check_schema(root: Path) -> None:
    """Refuse what is no store, and a store of the future. Raises NoStoreError, CorruptError, SchemaError."""
    try:
        schema = json.loads((root / META).read_bytes())["schema"]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NoStoreError(f"there is no store at {root}: Store.open(path, write=True) makes one") from error
    except (ValueError, LookupError, TypeError) as error:
        raise CorruptError(f"{root / META} does not read: {error}") from error
    if not isinstance(schema, int) or schema > SCHEMA:
        raise SchemaError(
            f"{root} has schema {schema!r}, palestra here reads up to {SCHEMA}: upgrade palestra"
        )
