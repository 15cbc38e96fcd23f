"""Append-only files of checksummed frames: the truth of a store; its index is derived from them.

    file   000001.seg, 000002.seg, ...: magic "PALESTRA", version u32, zero u32, then frames   (little-endian)
    frame  payload length u32, kind u8, 3 zero bytes, crc32 of the payload u32, crc32 of those 12 bytes u32,
           payload

A place in a store is one integer, the position: segment number * 2**40 + offset of the frame. Positions grow
in commit order. A frame that was cut short by a crash can only be the last one of the last file: the header
has its own checksum, so a damaged length is not mistaken for one. What a payload means is not known here.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from palestra.trajectories.disk import ReportingFull, sync_directory, write_at
from palestra.trajectories.errors import CorruptError, EncodeError, SchemaError, StoreError

VERSION = 1
_MAGIC = b"PALESTRA"
_FILE_HEADER = struct.Struct("<8sII")
_FRAME = struct.Struct("<IBxxxI")
_CHECKSUM = struct.Struct("<I")
FRAME_HEADER_BYTES = _FRAME.size + _CHECKSUM.size
MAX_SEGMENT_BYTES = 1 << 40
START = MAX_SEGMENT_BYTES + _FILE_HEADER.size
"""Position of the first frame of a store."""
_OPEN_FILES = 64


class Frame(NamedTuple):
    """One record as it lies in a segment."""

    position: int
    kind: int
    payload: bytes

    @property
    def end(self) -> int:
        """Position of the byte after it."""
        return self.position + FRAME_HEADER_BYTES + len(self.payload)


def segment_path(directory: Path, number: int) -> Path:
    """Where segment `number` lies; numbers count from 1."""
    return directory / f"{number:06d}.seg"


def scan(directory: Path, start: int) -> Iterator[Frame]:
    """Whole frames from position `start` on, verified, up to a frame that was cut short at the very end.

    Raises CorruptError, naming file and offset, for anything else that does not read.
    """
    first, offset = divmod(start, MAX_SEGMENT_BYTES)
    numbers = [n for n in _numbers(directory) if n >= first]
    if start != START and not numbers:
        raise CorruptError(f"{segment_path(directory, first)} is missing: restore it from a copy")
    for number in numbers:
        last = number == numbers[-1]
        path = segment_path(directory, number)
        with path.open("rb") as file:
            from_offset = offset if number == first else _FILE_HEADER.size
            yield from _frames(file, path, number, from_offset, last)


def loose_frames(path: Path) -> Iterator[Frame]:
    """Frames of a file that has no file header, up to one that was cut short. Raises CorruptError."""
    with path.open("rb") as file:
        while (frame := _next_frame(file, file.tell(), path)) is not None:
            yield frame


class SegmentWriter:
    """Appends frames; one per store at a time. Raises StoreFullError with what was committed untouched."""

    def __init__(self, directory: Path, end: int, *, segment_bytes: int, fsync: bool) -> None:
        """`end`: where `scan` came to its end. What lies beyond it is cut off, see `dropped_bytes`."""
        if not 0 < segment_bytes < MAX_SEGMENT_BYTES:
            raise ValueError(f"segment_bytes must be in 1..{MAX_SEGMENT_BYTES - 1}, got {segment_bytes}")
        self._directory, self._limit, self._fsync = directory, segment_bytes, fsync
        self.number, self._offset = divmod(end, MAX_SEGMENT_BYTES)
        self.dropped_bytes = 0
        self._fd = self._resume()

    def append(self, kind: int, payload: bytes) -> Frame:
        """Write one frame, whole or not at all. It survives the process; with fsync a loss of power too."""
        if len(payload) >> 32:
            raise EncodeError(f"a record of {len(payload)} bytes is too large, the limit is 4 GiB")
        frame = frame_bytes(kind, payload)
        if self._offset > _FILE_HEADER.size and self._offset + len(frame) > self._limit:
            self._rotate()
        position = self.number * MAX_SEGMENT_BYTES + self._offset
        with ReportingFull(self.path):
            self._write(frame)
        return Frame(position, kind, payload)

    @property
    def path(self) -> Path:
        """The segment being written."""
        return segment_path(self._directory, self.number)

    def close(self) -> None:
        """Close the segment. Nothing is buffered here."""
        os.close(self._fd)

    def _write(self, frame: bytes) -> None:
        write_at(self._fd, frame, self._offset)
        try:
            if self._fsync:
                os.fdatasync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._offset)
            raise
        self._offset += len(frame)

    def _rotate(self) -> None:
        fd = self._create(self.number + 1)
        os.close(self._fd)
        self._fd, self.number, self._offset = fd, self.number + 1, _FILE_HEADER.size

    def _resume(self) -> int:
        """Open the last segment, cut to its last whole frame."""
        numbers = _numbers(self._directory)
        if not numbers:
            return self._create(1)
        if numbers[-1] > self.number:
            self.number, self._offset = numbers[-1], _FILE_HEADER.size
        size = self.path.stat().st_size
        self.dropped_bytes = max(0, size - self._offset)
        if size < _FILE_HEADER.size:
            return self._create(self.number)
        fd = os.open(self.path, os.O_RDWR)
        os.ftruncate(fd, self._offset)
        return fd

    def _create(self, number: int) -> int:
        path = segment_path(self._directory, number)
        with ReportingFull(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
            try:
                write_at(fd, _FILE_HEADER.pack(_MAGIC, VERSION, 0), 0)
                if self._fsync:
                    os.fsync(fd)
                    sync_directory(self._directory)
            except OSError:
                os.close(fd)
                os.unlink(path)
                raise
        return fd


class SegmentReader:
    """Reads frames at known positions, from any thread."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[int, int] = {}
        self._lock = threading.Lock()

    def payload(self, position: int, size: int) -> bytes:
        """The payload of `size` bytes of the frame at `position`. Raises CorruptError."""
        raw = self._pread(position, FRAME_HEADER_BYTES + size)
        header, payload = raw[:FRAME_HEADER_BYTES], raw[FRAME_HEADER_BYTES:]
        known = _parse(header)
        if known is None or known[0] != size or len(payload) != size or zlib.crc32(payload) != known[2]:
            number, offset = divmod(position, MAX_SEGMENT_BYTES)
            raise _damaged(segment_path(self._directory, number), offset)
        return payload

    def start_of_payload(self, position: int, size: int) -> bytes:
        """The first `size` bytes of a payload, not verified."""
        return self._pread(position + FRAME_HEADER_BYTES, size)

    def close(self) -> None:
        """Close all files. Calling it twice is fine."""
        with self._lock:
            while self._files:
                os.close(self._files.popitem()[1])

    def _pread(self, position: int, size: int) -> bytes:
        number, offset = divmod(position, MAX_SEGMENT_BYTES)
        with self._lock:
            if number not in self._files:
                if len(self._files) == _OPEN_FILES:
                    os.close(self._files.pop(next(iter(self._files))))
                self._files[number] = os.open(segment_path(self._directory, number), os.O_RDONLY)
            return os.pread(self._files[number], size, offset)


def _numbers(directory: Path) -> list[int]:
    """Numbers of the segments, 1 to the last. Raises CorruptError where one is missing."""
    listed = {int(path.stem) for path in directory.glob("[0-9]*.seg")}
    numbers = list(range(1, max(listed, default=0) + 1))
    for number in numbers:
        # A listing that a writer adds to may show a later file and miss an earlier one.
        if number not in listed and not segment_path(directory, number).exists():
            raise CorruptError(f"{segment_path(directory, number)} is missing: restore it from a copy")
    return numbers


def _frames(file: BinaryIO, path: Path, number: int, offset: int, last: bool) -> Iterator[Frame]:
    size = os.fstat(file.fileno()).st_size
    if size < _FILE_HEADER.size and last:
        return
    _check_file_header(file.read(_FILE_HEADER.size), path)
    if offset > size:
        raise CorruptError(
            f"{path} has {size} bytes and the index knows records up to byte {offset}: the end of the file "
            f"is lost. Restore it from a copy, or delete index.sqlite to go on with what is left"
        )
    file.seek(offset)
    while offset < size:
        frame = _next_frame(file, number * MAX_SEGMENT_BYTES + offset, path)
        if frame is None and last:
            return
        if frame is None:
            raise _damaged(path, offset)
        yield frame
        offset += FRAME_HEADER_BYTES + len(frame.payload)


def _next_frame(file: BinaryIO, position: int, path: Path) -> Frame | None:
    """The frame at which `file` stands; None where it was cut short. Raises CorruptError."""
    header = file.read(FRAME_HEADER_BYTES)
    if len(header) < FRAME_HEADER_BYTES:
        return None
    known = _parse(header)
    if known is None:
        if not any(header) and not any(file.read()):
            return None  # a file system may leave zeros after a loss of power
        raise _damaged(path, position % MAX_SEGMENT_BYTES)
    length, kind, checksum = known
    payload = file.read(length)
    if len(payload) < length:
        return None
    if zlib.crc32(payload) != checksum:
        raise _damaged(path, position % MAX_SEGMENT_BYTES)
    return Frame(position, kind, payload)


def frame_bytes(kind: int, payload: bytes) -> bytes:
    """A frame as it is written."""
    header = _FRAME.pack(len(payload), kind, zlib.crc32(payload))
    return b"".join((header, _CHECKSUM.pack(zlib.crc32(header)), payload))


def _parse(header: bytes) -> tuple[int, int, int] | None:
    """(payload length, kind, checksum of the payload), or None where the header is damaged."""
    if len(header) < FRAME_HEADER_BYTES:
        return None
    fields, checksum = header[: _FRAME.size], _CHECKSUM.unpack(header[_FRAME.size :])[0]
    return _FRAME.unpack(fields) if zlib.crc32(fields) == checksum else None


def _check_file_header(header: bytes, path: Path) -> None:
    if len(header) < _FILE_HEADER.size or header[: len(_MAGIC)] != _MAGIC:
        raise CorruptError(f"{path} does not begin as a segment of a palestra store: restore it from a copy")
    version = _FILE_HEADER.unpack(header)[1]
    if version > VERSION:
        raise SchemaError(
            f"{path} has version {version}, palestra here reads up to {VERSION}: upgrade palestra"
        )


def _damaged(path: Path, offset: int) -> StoreError:
    return CorruptError(
        f"{path} is damaged at byte {offset}: a record does not match its checksum. Restore the file from a "
        f"copy. To give up this record and what follows it: truncate -s {offset} {path}; rm index.sqlite"
    )
