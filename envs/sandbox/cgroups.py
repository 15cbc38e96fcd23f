"""Control groups for sandboxes: version 1, version 2, or one of each (hybrid), whichever this machine has.

A group is used again by the next sandbox once all its processes are gone: making one costs more than a sandbox.
Its name carries the label of the process that made it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from palestra.envs.sandbox import owner
from palestra.envs.sandbox.base import Breach, Limits

CONTROLLERS = ("memory", "pids", "cpu")
_NAME = re.compile(r"palestra-(\d+-\d+)-\d+$")
_CPU_PERIOD_US = 100_000
_MAX_COUNTERS = 4096
_numbers = itertools.count(1)
"""Of all groups of this process, whoever makes them."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where groups can be made: a directory per controller; in version 2 the same one for all."""

    version: int
    parents: Mapping[str, Path]


def find_hierarchy() -> Hierarchy | None:
    """Where this process may bound memory and process counts; None where it may not."""
    v1, v2 = _mounts()
    parents = {name: path for name in CONTROLLERS if (path := v1.get(name)) is not None}
    if "memory" in parents and "pids" in parents:
        return Hierarchy(1, parents) if all(os.access(p, os.W_OK) for p in parents.values()) else None
    if v2 is not None and os.access(v2, os.W_OK) and _delegates(v2):
        return Hierarchy(2, dict.fromkeys(CONTROLLERS, v2))
    return None


@dataclass(slots=True)
class Group:
    """One sandbox's bounds."""

    version: int
    paths: Mapping[str, Path]
    limits: Limits | None = None
    _seen: dict[Breach, int] = field(default_factory=dict)
    _counters: list[tuple[Breach, str, bytes]] = field(init=False)

    def __post_init__(self) -> None:
        killed = "memory.oom_control" if self.version == 1 else "memory.events"
        self._counters = [
            ("memory", str(self.paths["memory"] / killed), b"oom_kill "),
            ("pids", str(self.paths["pids"] / "pids.events"), b"max "),
        ]

    def doors(self, *, cpu: bool) -> list[str]:
        """Files to which a process writes itself to come in. Each move costs, so unbounded CPU time needs none."""
        needed = [name for name in self.paths if name != "cpu" or cpu]
        return list(dict.fromkeys(f"{self.paths[name]}/cgroup.procs" for name in needed))

    def bound(self, limits: Limits) -> None:
        """Set the limits, and count breaches from here on."""
        if self.limits != limits:
            for path, text in _settings(self.version, self.paths, limits):
                path.write_text(text)
            self.limits = limits
        self.breach()

    def breach(self) -> Breach | None:
        """Which bound was hit since the last call."""
        counts = {name: _counter(path, key) for name, path, key in self._counters}
        hit: list[Breach] = [name for name, count in counts.items() if count > self._seen.get(name, 0)]
        self._seen = counts
        return hit[0] if hit else None

    def remove(self) -> None:
        for path in dict.fromkeys(self.paths.values()):
            _remove(path)


class Groups:
    """All groups of this process."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self._hierarchy = hierarchy
        self._free: list[Group] = []
        self._lock = threading.Lock()

    def take(self, limits: Limits) -> Group:
        """A group that nobody uses, best one that is already bound by `limits`."""
        with self._lock:
            fits = next((i for i, group in enumerate(self._free) if group.limits == limits), -1)
            return self._free.pop(fits) if self._free else self._make()

    def give_back(self, group: Group) -> None:
        """All processes of the group have ended."""
        with self._lock:
            self._free.append(group)

    def close(self) -> None:
        with self._lock:
            for group in self._free:
                group.remove()
            self._free.clear()

    def _make(self) -> Group:
        name = f"palestra-{owner.label()}-{next(_numbers)}"
        paths = {controller: parent / name for controller, parent in self._hierarchy.parents.items()}
        for path in dict.fromkeys(paths.values()):
            path.mkdir()
        return Group(self._hierarchy.version, paths)


def reap(hierarchy: Hierarchy) -> int:
    """Kill what is in groups of dead processes, remove them, and say how many there were."""
    dead = set()
    for parent in dict.fromkeys(hierarchy.parents.values()):
        for path in parent.glob("palestra-*"):
            match = _NAME.match(path.name)
            if match and not owner.alive(match[1]):
                _remove(path)
                dead.add(path.name)
    return len(dead)


def group_of(pid: int) -> Group | None:
    """The group that somebody else put a process into, for its counters; None where it cannot be seen."""
    try:
        v1, v2 = _mounts(pid)
        own = _groups_of(pid)
    except OSError:
        return None
    if "memory" in v1 and "pids" in v1:
        return Group(1, v1)
    return Group(2, dict.fromkeys(CONTROLLERS, Path(f"{v2}{own.get('', '')}"))) if v2 else None


def _groups_of(pid: int | str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return {names: path for _, names, path in (line.split(":", 2) for line in lines)}


def _mounts(pid: int | str = "self") -> tuple[dict[str, Path], Path | None]:
    """Directories of a process in each version 1 controller and the root of version 2."""
    own = _groups_of(pid)
    v1: dict[str, Path] = {}
    v2 = None
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup2":
            v2 = Path(where)
        for name in CONTROLLERS if kind == "cgroup" else ():
            if name in options.split(","):
                inside = next((path for key, path in own.items() if name in key.split(",")), "/")
                nested = Path(where + inside)
                v1[name] = nested if nested.is_dir() else Path(where)
    return v1, v2


def _delegates(root: Path) -> bool:
    """Whether children of the version 2 root have the controllers; asks for them where they have not."""
    control = root / "cgroup.subtree_control"
    with contextlib.suppress(OSError):
        control.write_text(" ".join(f"+{name}" for name in CONTROLLERS))
    try:
        return {"memory", "pids"} <= set(control.read_text().split())
    except OSError:
        return False


def _settings(version: int, paths: Mapping[str, Path], limits: Limits) -> list[tuple[Path, str]]:
    names = {1: ("memory.limit_in_bytes", "cpu.cfs_quota_us"), 2: ("memory.max", "cpu.max")}[version]
    quota = int(limits.cpus * _CPU_PERIOD_US) if limits.cpus else -1
    settings = [
        (paths["memory"] / names[0], str(limits.memory_bytes)),
        (paths["pids"] / "pids.max", str(limits.pids)),
    ]
    if "cpu" in paths:
        bound = str(quota) if version == 1 else f"{quota if quota > 0 else 'max'} {_CPU_PERIOD_US}"
        settings.append((paths["cpu"] / names[1], bound))
    swap = paths["memory"] / ("memory.memsw.limit_in_bytes" if version == 1 else "memory.swap.max")
    if version == 2 and swap.exists():
        settings.append((swap, "0"))
    return settings


def _counter(path: str, key: bytes) -> int:
    """The number after a key at the start of a line."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        _, _, rest = (b"\n" + os.read(fd, _MAX_COUNTERS)).partition(b"\n" + key)
    finally:
        os.close(fd)
    return int(rest.split(maxsplit=1)[0]) if rest else 0


def _remove(path: Path) -> None:
    """Kill what is inside and remove the group; the kernel takes a moment to let go of it."""
    for _ in range(200):
        try:
            for pid in (path / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)
