"""What lies where in the segments: a SQLite table for what was flushed, memory for what came after.

The index is derived. It answers for records before its mark from SQLite and for later ones from memory; a
writer moves memory into SQLite in batches, and whoever opens the store next scans the segments from the mark
on. So a crash between two batches loses nothing, and a reader sees what a live writer has not flushed yet.
"""

from __future__ import annotations

import difflib
import logging
import sqlite3
from pathlib import Path
from typing import NamedTuple, TypedDict

from palestra.trajectories.errors import StoreError
from palestra.trajectories.model import Mode
from palestra.trajectories.segments import START

log = logging.getLogger(__name__)

_BATCH = 64
_LATEST = 2000
_VERSION = 1
_SCHEMA = f"""
CREATE TABLE rollouts (
    position INTEGER PRIMARY KEY, size INTEGER NOT NULL, rollout_id TEXT NOT NULL UNIQUE,
    run_id TEXT NOT NULL, group_id TEXT NOT NULL, task_id TEXT NOT NULL, mode TEXT NOT NULL);
CREATE INDEX rollouts_by_run ON rollouts (run_id);
CREATE INDEX rollouts_by_group ON rollouts (group_id);
CREATE INDEX rollouts_by_task ON rollouts (task_id);
CREATE TABLE overlays (
    rollout_id TEXT NOT NULL, name TEXT NOT NULL, position INTEGER NOT NULL, size INTEGER NOT NULL,
    PRIMARY KEY (rollout_id, name)) WITHOUT ROWID;
CREATE TABLE mark (position INTEGER NOT NULL);
INSERT INTO mark VALUES ({START});
PRAGMA user_version = {_VERSION};
"""


class Entry(NamedTuple):
    """Where the trajectory of a rollout lies; `size` is that of its payload in bytes."""

    position: int
    size: int
    rollout_id: str
    run_id: str
    group_id: str
    task_id: str
    mode: str


class OverlayEntry(NamedTuple):
    """Where an overlay of a rollout lies."""

    rollout_id: str
    name: str
    position: int
    size: int


class Filters(TypedDict, total=False):
    """Keep rollouts with all of these; None means any."""

    run_id: str | None
    group_id: str | None
    task_id: str | None
    mode: Mode | None


class Index:
    """Not thread-safe: the store holds a lock. `end` is the position up to which records are known."""

    def __init__(self, database: sqlite3.Connection, *, owned: bool) -> None:
        """`owned`: this process alone writes to `database`, and may flush."""
        self._database, self._owned = database, owned
        self._mark = self.end = self._read_mark()
        self._rollouts: dict[str, Entry] = {}
        self._overlays: dict[tuple[str, str], OverlayEntry] = {}

    @classmethod
    def open(cls, path: Path, *, write: bool) -> Index:
        """The index at `path`. One that is lost or does not read starts empty, to be filled by a scan."""
        try:
            return cls(_connect(path, write), owned=write)
        except sqlite3.DatabaseError as error:
            log.warning("%s does not read (%s): all segments are scanned", path, error)
        if not write:
            return cls(_prepare(sqlite3.connect(":memory:", check_same_thread=False)), owned=True)
        try:
            _remove(path)
            return cls(_connect(path, write), owned=True)
        except sqlite3.DatabaseError as error:
            raise StoreError(f"cannot make {path} ({error}): is the disk full?") from error

    def add(self, entry: Entry, end: int) -> None:
        """Note a rollout; `end` is the position after its frame."""
        self._rollouts[entry.rollout_id] = entry
        self._noted(end)

    def add_overlay(self, entry: OverlayEntry, end: int) -> None:
        """Note an overlay, which takes the place of an earlier one of its name."""
        self._overlays[entry.rollout_id, entry.name] = entry
        self._noted(end)

    def flush(self) -> None:
        """Move what is in memory into SQLite. Where that fails (a full disk) it stays in memory."""
        try:
            with self._database as database:
                database.executemany(
                    "INSERT INTO rollouts VALUES (?, ?, ?, ?, ?, ?, ?)", self._rollouts.values()
                )
                database.executemany("REPLACE INTO overlays VALUES (?, ?, ?, ?)", self._overlays.values())
                database.execute("UPDATE mark SET position = ?", (self.end,))
        except sqlite3.OperationalError as error:
            log.warning(
                "the index was not written (%s): records are safe, the next open scans for them", error
            )
            return
        self._mark = self.end
        self._rollouts.clear()
        self._overlays.clear()

    def follow(self) -> None:
        """Drop from memory what the writer of the store has moved into SQLite meanwhile."""
        mark = self._read_mark()
        if mark == self._mark:
            return
        self._mark, self.end = mark, max(mark, self.end)
        self._rollouts = {k: e for k, e in self._rollouts.items() if e.position >= mark}
        self._overlays = {k: e for k, e in self._overlays.items() if e.position >= mark}

    def find(self, rollout_id: str) -> Entry | None:
        """Where a rollout lies, or None."""
        if (entry := self._rollouts.get(rollout_id)) is not None:
            return entry
        row = self._database.execute("SELECT * FROM rollouts WHERE rollout_id = ?", (rollout_id,)).fetchone()
        return Entry(*row) if row else None

    def find_overlay(self, rollout_id: str, name: str) -> OverlayEntry | None:
        """Where the latest overlay of this name lies, or None."""
        if (entry := self._overlays.get((rollout_id, name))) is not None:
            return entry
        query = "SELECT * FROM overlays WHERE rollout_id = ? AND name = ?"
        row = self._database.execute(query, (rollout_id, name)).fetchone()
        return OverlayEntry(*row) if row else None

    def select(self, filters: Filters) -> list[Entry]:
        """Rollouts that pass `filters`, in commit order."""
        wanted = {name: value for name, value in filters.items() if value is not None}
        if unknown := wanted.keys() - Filters.__annotations__:
            raise TypeError(
                f"unknown filters {sorted(unknown)}; there are {', '.join(Filters.__annotations__)}"
            )
        where = " AND ".join(["position < ?", *(f"{name} = ?" for name in wanted)])
        query = f"SELECT * FROM rollouts WHERE {where} ORDER BY position"
        flushed = [Entry(*row) for row in self._database.execute(query, (self._mark, *wanted.values()))]
        recent = self._rollouts.values()
        return flushed + [e for e in recent if all(getattr(e, n) == value for n, value in wanted.items())]

    def similar(self, rollout_id: str) -> list[str]:
        """Ids like `rollout_id` among the latest."""
        query = "SELECT rollout_id FROM rollouts ORDER BY position DESC LIMIT ?"
        latest = [row[0] for row in self._database.execute(query, (_LATEST,))]
        return difflib.get_close_matches(rollout_id, [*self._rollouts, *latest], n=1)

    def __len__(self) -> int:
        query = "SELECT count(*) FROM rollouts WHERE position < ?"
        return int(self._database.execute(query, (self._mark,)).fetchone()[0]) + len(self._rollouts)

    def close(self) -> None:
        """Flush and close."""
        if self._owned:
            self.flush()
        self._database.close()

    def _noted(self, end: int) -> None:
        self.end = end
        if self._owned and (len(self._rollouts) + len(self._overlays)) % _BATCH == 0:
            self.flush()

    def _read_mark(self) -> int:
        return int(self._database.execute("SELECT position FROM mark").fetchone()[0])


def _connect(path: Path, write: bool) -> sqlite3.Connection:
    if write and not path.exists():
        _remove(path)
    uri = f"{path.absolute().as_uri()}?mode={'rwc' if write else 'ro'}"
    database = sqlite3.connect(uri, uri=True, check_same_thread=False)
    try:
        return _prepare(database) if write else _checked(database)
    except sqlite3.DatabaseError:
        database.close()
        raise


def _prepare(database: sqlite3.Connection) -> sqlite3.Connection:
    """`database`, ready to be written: with tables, write-ahead log, and syncs at checkpoints only."""
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    if database.execute("PRAGMA user_version").fetchone()[0] == 0:
        database.executescript(_SCHEMA)
    return _checked(database)


def _checked(database: sqlite3.Connection) -> sqlite3.Connection:
    version = database.execute("PRAGMA user_version").fetchone()[0]
    if version != _VERSION:
        raise sqlite3.DatabaseError(f"it has version {version}, not {_VERSION}")
    return database


def _remove(path: Path) -> None:
    """Delete the index, and a write-ahead log that an index deleted by hand left behind."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
