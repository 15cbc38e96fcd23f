"""Where rows go, so that an export that was interrupted goes on where it was.

A sink takes rollouts one by one. At each checkpoint what was taken is on disk together with a small state
file; `open` finds the state again and drops what came after it. Nothing of an unfinished export is ever under
the name that was asked for (JSON Lines), or the directory's `export.json` says that it is not complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import orjson

from palestra.trajectories import disk
from palestra.trajectories.errors import ExportError
from palestra.trajectories.exports.jsontext import json_bytes
from palestra.trajectories.exports.parquet import TABLES, write_part

EVERY_ROLLOUTS = 256
"""Rollouts between checkpoints."""
_BUFFERED_TOKENS = 4_000_000
"""Of Parquet rows, before they are written out."""
_NAME_BYTES = 200


@dataclass
class State:
    """How far an export is, and what it was asked to be."""

    asked: Mapping[str, Any]
    done: int = 0
    """Rollouts of the store that were dealt with, in commit order."""
    rollouts: int = 0
    rows: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    position: int = 0
    """Bytes or parts that are whole."""
    complete: bool = False


class Sink(Protocol):
    """Takes the rows of one rollout after another."""

    state: State

    def write(self, rollout_id: str, rows: Iterable[Any]) -> int:
        """Take the rows of one rollout; returns how many they were."""
        ...

    def checkpoint(self) -> None:
        """Make sure that what was taken survives the process."""
        ...

    def finish(self) -> None:
        """All rollouts were taken."""
        ...

    def close(self) -> None:
        """Release files. What came after the last checkpoint is dropped by the next `open`."""
        ...


def _read_state(path: Path, asked: Mapping[str, Any]) -> State:
    """Raises ExportError where the export at `path` was begun with other options."""
    if not path.exists():
        return State(asked)
    try:
        state = State(**orjson.loads(path.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ExportError(f"{path} is no state of an export: delete it to begin anew") from error
    if state.asked != asked:
        raise ExportError(
            f"{path} is of an export with other options, {dict(state.asked)}: repeat those, delete it, or "
            "choose another -o"
        )
    return state


def _write_state(path: Path, state: State) -> None:
    disk.replace(path, orjson.dumps(asdict(state), option=orjson.OPT_INDENT_2), fsync=False)


class JsonLines:
    """One file, a row per line; it has its name once it is complete."""

    def __init__(self, out: Path, asked: Mapping[str, Any]) -> None:
        """Raises ExportError where there is a file `out` already."""
        if out.exists():
            raise ExportError(f"{out} exists already: delete it or choose another -o")
        out.parent.mkdir(parents=True, exist_ok=True)
        self._out, self._partial = out, out.with_name(f"{out.name}.partial")
        self._state_path = out.with_name(f"{out.name}.partial.json")
        self.state = _read_state(self._state_path, asked)
        self._file = self._partial.open("ab")
        self._file.truncate(self.state.position)

    def write(self, rollout_id: str, rows: Iterable[Any]) -> int:
        count = 0
        for row in rows:
            with disk.ReportingFull(self._partial):
                self._file.write(json_bytes(row) + b"\n")
            count += 1
        return count

    def checkpoint(self) -> None:
        with disk.ReportingFull(self._partial):
            self._file.flush()
        self.state.position = self._file.tell()
        _write_state(self._state_path, self.state)

    def finish(self) -> None:
        self.checkpoint()
        self._file.close()
        self._partial.replace(self._out)
        self._state_path.unlink()

    def close(self) -> None:
        self._file.close()


class Documents:
    """A directory with one JSON file per rollout, named by its id."""

    def __init__(self, out: Path, asked: Mapping[str, Any]) -> None:
        self._out = _directory(out)
        self.state = _read_state(out / "export.json", asked)
        self.checkpoint()

    def write(self, rollout_id: str, rows: Iterable[Any]) -> int:
        count = 0
        for row in rows:
            disk.replace(self._out / file_name(rollout_id), json_bytes(row), fsync=False)
            count += 1
        return count

    def checkpoint(self) -> None:
        _write_state(self._out / "export.json", self.state)

    def finish(self) -> None:
        self.state.complete = True
        self.checkpoint()

    def close(self) -> None:
        """Nothing is open."""


class Parquet:
    """A directory of tables, a file of each per checkpoint. Raises ImportError without pyarrow."""

    def __init__(self, out: Path, asked: Mapping[str, Any]) -> None:
        import pyarrow  # noqa: F401

        self._out = _directory(out)
        self.state = _read_state(out / "export.json", asked)
        self._rows: dict[str, list[Any]] = {table: [] for table in TABLES}
        self._tokens = 0
        self.checkpoint()

    def write(self, rollout_id: str, rows: Iterable[tuple[str, Any]]) -> int:
        count = 0
        for table, row in rows:
            self._rows[table].append(row)
            self._tokens += len(row.get("ids", ()))
            count += table == "samples"
        return count

    def checkpoint(self) -> None:
        if any(self._rows.values()):
            for table, rows in self._rows.items():
                write_part(self._out, table, self.state.position, rows)
            self._rows = {table: [] for table in TABLES}
            self._tokens = 0
            self.state.position += 1
        _write_state(self._out / "export.json", self.state)

    @property
    def full(self) -> bool:
        """Whether so much is in memory that a checkpoint is due."""
        return self._tokens >= _BUFFERED_TOKENS

    def finish(self) -> None:
        self.state.complete = True
        self.checkpoint()

    def close(self) -> None:
        """What is in memory was not promised."""


def _directory(out: Path) -> Path:
    """`out` as a directory of ours. Raises ExportError for a file or for another directory."""
    if out.exists() and not (out / "export.json").exists() and (out.is_file() or any(out.iterdir())):
        raise ExportError(f"{out} exists and is no export: choose another -o, this form is a directory")
    out.mkdir(parents=True, exist_ok=True)
    return out


def file_name(rollout_id: str) -> str:
    """A file name for a rollout, readable where the id allows it."""
    name = quote(rollout_id, safe="")
    if len(name) > _NAME_BYTES:
        name = f"{name[:_NAME_BYTES]}-{hashlib.sha256(rollout_id.encode()).hexdigest()[:16]}"
    return f"{name}.json"
