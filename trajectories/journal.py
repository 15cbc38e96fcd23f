"""Calls that were answered before their rollout was committed: one small file per open rollout.

    journal/<time>-<random>.calls    frames of segments.py, without a file header:
      1 lost         the rollout as it is to be committed if the process dies, its failure included (codec.py)
      2 becomes      id under which the rollout is committed if all goes well; then this file means nothing
      3 calls        calls, the nodes and the tools that came with them (codec.py)
      4 undelivered  numbers of calls before those whose replies reached nobody, as JSON

`Journal.keep` returns when the operating system has the call, with fsync when the disk has it: what was
answered survives a kill of the process. The rollout's commit makes the file superfluous; what is still there
when the store is opened for writing the next time is committed as lost.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from palestra.trajectories import codec
from palestra.trajectories.disk import reporting_full, sync_directory, write_at
from palestra.trajectories.errors import CorruptError
from palestra.trajectories.model import Call, Node, Rollout, Trajectory
from palestra.trajectories.segments import frame_bytes, loose_frames

log = logging.getLogger(__name__)

_LOST, _BECOMES, _CALLS, _UNDELIVERED = 1, 2, 3, 4
_SUFFIX = ".calls"


class Journal:
    """What an open rollout has on disk. Made by `Store.journal`; nothing is written before the first call."""

    def __init__(self, directory: Path, lost: Rollout, becomes: str, *, fsync: bool) -> None:
        self.path = directory / f"{time.time_ns():020d}-{secrets.token_hex(4)}{_SUFFIX}"
        self._lost, self._becomes, self._fsync = lost, becomes, fsync
        self._size = self._nodes = self._calls = self._tools = 0

    def keep(
        self, nodes: Sequence[Node], calls: Sequence[Call], tools: codec.Tools, undelivered: Collection[int]
    ) -> None:
        """Write what of a recording is not written yet; all four are the whole recording so far.

        Nothing is written where there is no new call. Raises StoreFullError, after which the same call may be
        made again, and EncodeError.
        """
        new = calls[self._calls :]
        if not new:
            return
        frames = [] if self._size else self._head()
        fresh_tools = dict(list(tools.items())[self._tools :])
        frames.append(frame_bytes(_CALLS, codec.encode_body(nodes[self._nodes :], new, (), fresh_tools)))
        earlier = sorted(set(undelivered) - {call.seq for call in new})
        if earlier:
            frames.append(frame_bytes(_UNDELIVERED, orjson.dumps(earlier)))
        self._write(b"".join(frames))
        self._nodes, self._calls, self._tools = len(nodes), len(calls), len(tools)

    def discard(self) -> None:
        """The rollout is committed, or is not to be kept. Calling it twice is fine."""
        self.path.unlink(missing_ok=True)

    def _head(self) -> list[bytes]:
        lost = frame_bytes(_LOST, codec.encode(Trajectory(self._lost)))
        return [lost, frame_bytes(_BECOMES, self._becomes.encode())]

    def _write(self, data: bytes) -> None:
        """Whole or not at all. The file is not kept open: a proxy may have more rollouts than descriptors."""
        with reporting_full(self.path):
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                write_at(fd, data, self._size)
                if self._fsync:
                    os.fdatasync(fd)
            finally:
                os.close(fd)
        if self._fsync and not self._size:
            sync_directory(self.path.parent)
        self._size += len(data)


@dataclass(slots=True)
class Remains:
    """What a process that died left of one rollout."""

    path: Path
    becomes: str = ""
    lost: Rollout | None = None
    nodes: list[Node] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    tools: dict[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    undelivered: set[int] = field(default_factory=set)

    def trajectory(self) -> Trajectory | None:
        """All calls that were answered; None where not one was written whole."""
        if self.lost is None or not self.calls:
            return None
        known = "calls before the last one" if self.undelivered else "no call"
        finding = (
            f"{len(self.calls)} calls were answered and recovered; that {known} reached the harness is sure"
        )
        versions = [version for node in self.nodes for _, version in node.versions]
        lost = replace(
            self.lost,
            findings=(*self.lost.findings, finding),
            policy_versions=(min(versions), max(versions)) if versions else None,
        )
        calls = (replace(c, delivered=c.seq not in self.undelivered) for c in self.calls)
        return Trajectory(lost, tuple(self.nodes), tuple(calls), (), self.tools)

    def add(self, kind: int, payload: bytes) -> None:
        """Take in one frame. Raises CorruptError and SchemaError."""
        if kind == _LOST:
            self.lost = codec.decode_rollout(payload)
        elif kind == _BECOMES:
            self.becomes = payload.decode()
        elif kind == _UNDELIVERED:
            self.undelivered |= set(orjson.loads(payload))
        elif kind == _CALLS:
            nodes, calls, _, tools = codec.decode_body(payload)
            self.nodes += nodes
            self.calls += calls
            self.tools |= tools
            self.undelivered = {call.seq for call in calls}
        else:
            raise CorruptError(f"{self.path} has a frame of kind {kind}, which is not known")


def remains(directory: Path) -> Iterator[Remains]:
    """What was left in `directory`, oldest first. A file that is damaged gives what comes before the damage."""
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        found = Remains(path)
        try:
            for frame in loose_frames(path):
                found.add(frame.kind, frame.payload)
        except (CorruptError, ValueError) as error:
            log.warning("%s: only the first %d calls can be recovered (%s)", path, len(found.calls), error)
        yield found
