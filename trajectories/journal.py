"""Calls that were answered before their rollout was committed.

    journal/<time>-<random>.journal    of many rollouts (shared_file.py): frames of segments.py, without a file header,
                                       each payload after the number (u32, little-endian) that its rollout has there
      1 lost         the rollout as it is to be committed if the process dies, its failure included (codec.py)
      2 becomes      id under which the rollout is committed if all goes well; then its frames mean nothing
      3 calls        calls, the nodes and the tools that came with them (codec.py)
      4 undelivered  numbers of calls before those whose replies reached nobody, as JSON
      5 discarded    committed, or not to be kept

`Journal.keep` returns when the operating system has the call, with fsync when the disk has it: what was
answered survives a kill of the process. The rollout's commit makes its frames superfluous; what is still there
when the store is opened for writing the next time is committed as lost.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from palestra.trajectories import codec
from palestra.trajectories.errors import CorruptError, StoreFullError
from palestra.trajectories.model import Call, Node, Rollout, Trajectory
from palestra.trajectories.segments import frame_bytes, loose_frames
from palestra.trajectories.shared_file import SharedFile, SharedFiles

log = logging.getLogger(__name__)

SUFFIX = ".journal"
_LOST, _BECOMES, _CALLS, _UNDELIVERED, _DISCARDED = 1, 2, 3, 4, 5
_NUMBER = struct.Struct("<I")


class Journal:
    """What an open rollout has on disk. Made by `Store.journal`; nothing is written before the first call."""

    def __init__(self, files: SharedFiles, lost: Rollout, becomes: str) -> None:
        self._files, self._lost, self._becomes = files, lost, becomes
        self._file: SharedFile | None = None
        self._number = b""
        self._nodes = self._calls = self._tools = 0

    @property
    def path(self) -> Path | None:
        """The file that has what was kept, that of other rollouts too; None before the first call."""
        return self._file.path if self._file is not None else None

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
        file = self._file or self._begin()
        frames = [] if self._calls else self._head()
        fresh_tools = dict(list(tools.items())[self._tools :]) if len(tools) > self._tools else {}
        frames.append(self._frame(_CALLS, codec.encode_body(nodes[self._nodes :], new, (), fresh_tools)))
        earlier = sorted(set(undelivered) - {call.seq for call in new})
        if earlier:
            frames.append(self._frame(_UNDELIVERED, orjson.dumps(earlier)))
        file.append(b"".join(frames))
        self._nodes, self._calls, self._tools = len(nodes), len(calls), len(tools)

    def discard(self) -> None:
        """The rollout is committed, or is not to be kept. Calling it twice is fine.

        On a full disk that cannot be noted: if the process dies then, a rollout that was not to be kept is committed
        as lost.
        """
        file, self._file = self._file, None
        if file is not None and not self._files.end(file):
            with contextlib.suppress(StoreFullError):
                file.append(self._frame(_DISCARDED, b""))

    def _begin(self) -> SharedFile:
        self._file, number = self._files.begin()
        self._number = _NUMBER.pack(number)
        return self._file

    def _head(self) -> list[bytes]:
        lost = self._frame(_LOST, codec.encode(Trajectory(self._lost)))
        return [lost, self._frame(_BECOMES, self._becomes.encode())]

    def _frame(self, kind: int, payload: bytes) -> bytes:
        return frame_bytes(kind, self._number + payload)


@dataclass(slots=True)
class Remains:
    """What a process that died left of one rollout."""

    becomes: str = ""
    lost: Rollout | None = None
    nodes: list[Node] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    tools: dict[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    undelivered: set[int] = field(default_factory=set)
    discarded: bool = False

    def trajectory(self) -> Trajectory | None:
        """All calls that were answered; None where not one was written whole, or none is to be kept."""
        if self.lost is None or not self.calls or self.discarded:
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
        elif kind == _DISCARDED:
            self.discarded = True
        else:
            raise CorruptError(f"it has a frame of kind {kind}, which is not known")


def remains(directory: Path) -> Iterator[tuple[Path, list[Remains]]]:
    """What was left in each file in `directory`, oldest first. One that is damaged gives what comes before the
    damage."""
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        found: dict[int, Remains] = {}
        try:
            for frame in loose_frames(path):
                [number] = _NUMBER.unpack_from(frame.payload)
                found.setdefault(number, Remains()).add(frame.kind, frame.payload[_NUMBER.size :])
        except (CorruptError, ValueError, struct.error) as error:
            calls = sum(len(r.calls) for r in found.values())
            log.warning("%s: only the first %d calls can be recovered (%s)", path, calls, error)
        yield path, list(found.values())
