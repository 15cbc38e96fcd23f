"""A directory of trajectories: append-only, crash-safe, one writer, any number of readers.

    store.json     schema version                       segments/      the records (segments.py), the truth
    writer.lock    held by the writer while it lives     index.sqlite   what lies where (index.py), derived
    blobs/         attachments by SHA-256 (blobs.py)  journal/      of rollouts that are being made (journal.py)

When `append` returns, the rollout survives a kill of the process; with fsync=True, a loss of power too.
A reader sees all that was appended before it asks, by this process or another on the same machine. Records
are never changed: what a trainer derives (advantages, say) is laid over them, the latest of a name counts.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self, Unpack

from palestra.trajectories import codec
from palestra.trajectories.blobs import Blobs
from palestra.trajectories.errors import (
    CorruptError,
    DuplicateError,
    EncodeError,
    NotFoundError,
    SchemaError,
    StoreError,
    StoreFullError,
)
from palestra.trajectories.index import Entry, Filters, Index, OverlayEntry
from palestra.trajectories.journal import SUFFIX, Journal, Remains, remains
from palestra.trajectories.layout import INDEX, JOURNAL, check_schema, create, locked
from palestra.trajectories.model import FloatArray, Rollout, Trajectory
from palestra.trajectories.segments import Frame, SegmentReader, SegmentWriter, scan
from palestra.trajectories.shared_file import SharedFiles

log = logging.getLogger(__name__)

COMPRESS_ABOVE_BYTES = 64 * 1024
_ROLLOUT, _OVERLAY = 1, 2  # kinds of frames
_SUMMARY_BYTES = 2048  # enough for most rollouts without their nodes


class Store:
    """Trajectories in a directory; get one from `Store.open`. Safe from any thread, not across a fork."""

    def __init__(self, path: Path, index: Index, *, fsync: bool) -> None:
        self.path = path
        self._index, self._fsync = index, fsync
        self._blobs = Blobs(path / "blobs", fsync=fsync)
        self._journals = SharedFiles(path / JOURNAL, SUFFIX, fsync=fsync)
        self._segments = path / "segments"
        self._reader = SegmentReader(self._segments)
        self._writer: SegmentWriter | None = None
        self._lock = threading.RLock()
        self._resources = contextlib.ExitStack()
        self._open = True

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        write: bool = False,
        segment_bytes: int = 1 << 28,
        fsync: bool = False,
    ) -> Self:
        """Open the store in directory `path`; a writer creates it where there is none, and commits as lost what
        a writer before it left in the journal.

        A new segment is begun where one would pass `segment_bytes`. With `fsync`, `append` returns when the
        record is on the disk.

        Raises NoStoreError, StoreLockedError, SchemaError, CorruptError and StoreFullError.
        """
        root = Path(path)
        with contextlib.ExitStack() as resources:
            if write:
                resources.enter_context(locked(root))
                create(root, fsync)
            check_schema(root)
            index = resources.enter_context(contextlib.closing(Index.open(root / INDEX, write=write)))
            store = cls(root, index, fsync=fsync)
            resources.enter_context(contextlib.closing(store._reader))
            resources.enter_context(contextlib.closing(store._journals))
            store._scan()
            if write:
                writer = SegmentWriter(store._segments, index.end, segment_bytes=segment_bytes, fsync=fsync)
                store._writer = resources.enter_context(contextlib.closing(writer))
                _report_cut(writer)
                store._recover()
            store._resources = resources.pop_all()
        return store

    def close(self) -> None:
        """Release the files, and the lock of a writer. Calling it twice is fine."""
        with self._lock:
            self._open = False
            self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def append(self, trajectory: Trajectory) -> None:
        """Commit one rollout, whole or not at all.

        Raises DuplicateError where its id is committed already, EncodeError for values that cannot be given
        back exactly, and StoreFullError: then nothing of it is kept, and it may be appended again.
        """
        rollout = trajectory.rollout
        _check_ids(rollout)
        payload = codec.encode(trajectory, COMPRESS_ABOVE_BYTES)
        with self._lock:
            writer = self._writable()
            if self._index.find(rollout.rollout_id) is not None:
                raise DuplicateError(f"rollout {rollout.rollout_id!r} is committed already in {self.path}")
            for data in trajectory.blobs.values():
                self._blobs.put(data)
            frame = writer.append(_ROLLOUT, payload)
            self._index.add(_entry(frame, rollout), frame.end)

    def journal(self, lost: Rollout, becomes: str = "") -> Journal:
        """Where the calls of a rollout are kept until it is committed: see `Journal`.

        `lost` is committed with them if this process dies before it discards the journal, unless there is a
        rollout `becomes` then, or one with the id of `lost`. Raises EncodeError.
        """
        self._writable()
        _check_ids(lost)
        return Journal(self._journals, lost, becomes or lost.rollout_id)

    def append_overlay(
        self, rollout_id: str, name: str, values: FloatArray, meta: Mapping[str, Any] | None = None
    ) -> None:
        """Lay `values` over a committed rollout, in place of earlier ones of this name.

        Raises NotFoundError, EncodeError and StoreFullError.
        """
        payload = codec.encode_overlay(rollout_id, name, values, meta or {})
        with self._lock:
            writer = self._writable()
            self._find(rollout_id)
            frame = writer.append(_OVERLAY, payload)
            self._index.add_overlay(OverlayEntry(rollout_id, name, frame.position, len(payload)), frame.end)

    def get(self, rollout_id: str) -> Trajectory:
        """The trajectory of a rollout. Raises NotFoundError and CorruptError."""
        return self._trajectory(self._find(rollout_id))

    def rollout(self, rollout_id: str) -> Rollout:
        """The rollout without its tokens, read cheaply. Raises NotFoundError and CorruptError."""
        return self._summary(self._find(rollout_id))

    def overlay(self, rollout_id: str, name: str) -> tuple[FloatArray, dict[str, Any]] | None:
        """The latest overlay of this name with its meta; None where the rollout has none."""
        with self._lock:
            self._follow()
            entry = self._index.find_overlay(rollout_id, name)
        if entry is None:
            return None
        _, _, values, meta = codec.decode_overlay(self._reader.payload(entry.position, entry.size))
        return values, meta

    def ids(self, **filters: Unpack[Filters]) -> list[str]:
        """Rollout ids in commit order; `filters`: run_id, group_id, task_id, mode."""
        return [entry.rollout_id for entry in self._select(filters)]

    def rollouts(self, **filters: Unpack[Filters]) -> Iterator[Rollout]:
        """Rollouts without their tokens, in commit order; `filters` as for `ids`."""
        return map(self._summary, self._select(filters))

    def trajectories(self, **filters: Unpack[Filters]) -> Iterator[Trajectory]:
        """Trajectories in commit order, one in memory at a time; `filters` as for `ids`."""
        return map(self._trajectory, self._select(filters))

    def __iter__(self) -> Iterator[Trajectory]:
        return self.trajectories()

    def __contains__(self, rollout_id: str) -> bool:
        return self._lookup(rollout_id) is not None

    def __len__(self) -> int:
        with self._lock:
            self._follow()
            return len(self._index)

    def put_blob(self, data: bytes) -> str:
        """Keep `data` once; returns its SHA-256 in hex. Raises StoreFullError."""
        self._writable()
        return self._blobs.put(data)

    def get_blob(self, sha256: str) -> bytes:
        """The blob named `sha256`. Raises NotFoundError and CorruptError."""
        return self._blobs.get(sha256)

    def _trajectory(self, entry: Entry) -> Trajectory:
        return codec.decode(self._reader.payload(entry.position, entry.size))

    def _summary(self, entry: Entry) -> Rollout:
        start = self._reader.start_of_payload(entry.position, min(entry.size, _SUMMARY_BYTES))
        try:
            if (size := codec.head_size(start)) > len(start):
                start = self._reader.start_of_payload(entry.position, min(entry.size, size))
            return codec.decode_rollout(start)
        except CorruptError:
            self._reader.payload(entry.position, entry.size)  # says which file is damaged, and where
            raise

    def _find(self, rollout_id: str) -> Entry:
        if (entry := self._lookup(rollout_id)) is not None:
            return entry
        with self._lock:
            similar = self._index.similar(rollout_id)
        hint = f"did you mean {similar[0]!r}?" if similar else "ids() lists what there is"
        raise NotFoundError(f"there is no rollout {rollout_id!r} in {self.path}: {hint}")

    def _lookup(self, rollout_id: str) -> Entry | None:
        with self._lock:
            self._check_open()
            if (entry := self._index.find(rollout_id)) is None:
                self._follow()
                entry = self._index.find(rollout_id)
        return entry

    def _select(self, filters: Filters) -> list[Entry]:
        with self._lock:
            self._follow()
            return self._index.select(filters)

    def _follow(self) -> None:
        """For a reader: learn what the writer has appended since."""
        self._check_open()
        if self._writer is None:
            self._index.follow()
            self._scan()

    def _scan(self) -> None:
        for frame in scan(self._segments, self._index.end):
            if frame.kind == _ROLLOUT:
                self._note_rollout(frame)
            elif frame.kind == _OVERLAY:
                rollout_id, name, _, _ = codec.decode_overlay(frame.payload)
                entry = OverlayEntry(rollout_id, name, frame.position, len(frame.payload))
                self._index.add_overlay(entry, frame.end)
            else:
                raise SchemaError(f"{self.path} has records of kind {frame.kind}: upgrade palestra")

    def _note_rollout(self, frame: Frame) -> None:
        rollout = codec.decode_rollout(frame.payload)
        known = self._index.find(rollout.rollout_id)
        if known is not None and known.position != frame.position:
            raise CorruptError(f"{self.path} has rollout {rollout.rollout_id!r} twice")
        self._index.add(_entry(frame, rollout), frame.end)

    def _recover(self) -> None:
        """Commit what was answered and never committed. On a full disk that waits for the next time."""
        for path, left in remains(self.path / JOURNAL):
            try:
                for rollout in left:
                    self._recover_one(rollout)
            except StoreFullError as error:
                return log.warning("%s waits to be recovered: %s", path, error)
            path.unlink()

    def _recover_one(self, left: Remains) -> None:
        trajectory = left.trajectory()
        if trajectory is not None and not self._has(left.becomes, trajectory.rollout.rollout_id):
            self.append(trajectory)

    def _has(self, *rollout_ids: str) -> bool:
        return any(self._index.find(i) is not None for i in rollout_ids)

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError(f"the store {self.path} is closed: open it again with Store.open")

    def _writable(self) -> SegmentWriter:
        self._check_open()
        if self._writer is None:
            raise StoreError(f"{self.path} is open for reading: Store.open(path, write=True) to append")
        return self._writer


def _entry(frame: Frame, rollout: Rollout) -> Entry:
    place = frame.position, len(frame.payload)
    return Entry(*place, rollout.rollout_id, rollout.run_id, rollout.group_id, rollout.task_id, rollout.mode)


def _check_ids(rollout: Rollout) -> None:
    for name in ("rollout_id", "run_id", "group_id", "task_id", "mode"):
        try:
            getattr(rollout, name).encode()
        except UnicodeEncodeError as error:
            raise EncodeError(f"{name} {getattr(rollout, name)!r} is not valid Unicode text") from error


def _report_cut(writer: SegmentWriter) -> None:
    if writer.dropped_bytes:
        log.warning("%s: cut %d bytes of a half-written record", writer.path, writer.dropped_bytes)
