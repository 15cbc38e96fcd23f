"""Sandboxes of Linux namespaces: no daemon, a millisecond to make one. The default.

Every sandbox has mount, process, IPC, host-name and network namespaces of its own, a root file system of overlayfs
(the image read-only below, a tmpfs on top), a control group, a seccomp filter and no capabilities. As an ordinary
user a user namespace comes on top, "agent" is the only user, and limits of memory and processes depend on what the
system delegates (`palestra sandbox check`). Files that are written live in memory.

A snapshot freezes the tmpfs into a layer and the sandbox goes on with a fresh one above it: no data is copied.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import resource
import select
import socket
import threading
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from palestra.envs.sandbox import agent, cgroups
from palestra.envs.sandbox.base import Breach, Image, Limits, Outlets, Snapshot
from palestra.envs.sandbox.berths import Berth, Berths
from palestra.envs.sandbox.closing import Closing
from palestra.envs.sandbox.errors import SandboxError, SandboxLostError
from palestra.envs.sandbox.layers import Layer, Layers
from palestra.envs.sandbox.machine import Machine
from palestra.envs.sandbox.supervisor import Supervisor
from palestra.envs.sandbox.timer import Repeat

log = logging.getLogger(__name__)

MAX_LAYERS = 128
REAP_EVERY_S = 300.0
_BYTES_PER_INODE = 4096


class NamespaceBackend(Closing):
    """Makes sandboxes of namespaces. One per process is enough; from any thread."""

    name = "namespace"

    def __init__(self) -> None:
        """Raises SandboxSetupError where the kernel does not allow it."""
        hierarchy = cgroups.find_hierarchy()
        if hierarchy:
            cgroups.reap(hierarchy)
        self._hierarchy = hierarchy
        _allow_many_files()
        self._supervisor = Supervisor()
        self._berths = Berths(self._supervisor, cgroups.Groups(hierarchy) if hierarchy else None)
        self._layers = Layers(self._supervisor)
        self._live: weakref.WeakSet[NamespaceSandbox] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        self._reaper = Repeat(self.reap, REAP_EVERY_S)
        for lack in self.lacks():
            log.warning("namespace sandboxes: %s", lack)

    def create(
        self,
        source: Image | Snapshot,
        limits: Limits | None = None,
        *,
        sockets: Mapping[int, Path] | None = None,
        shared: Mapping[str, Path] | None = None,
    ) -> NamespaceSandbox:
        if isinstance(source, Image):
            frozen: tuple[Layer, ...] = tuple(self._layers.of_directory(path) for path in source.layers)
            image = source
        elif isinstance(source, NamespaceSnapshot):
            frozen, image = source.layers, source.image
        else:
            raise SandboxError(f"the namespace backend cannot start from a {type(source).__name__}")
        sandbox = NamespaceSandbox(self, image, frozen, limits or Limits(), Outlets.of(sockets, shared))
        with self._lock:
            self._live.add(sandbox)
        return sandbox

    def reap(self) -> int:
        return cgroups.reap(self._hierarchy) if self._hierarchy else 0

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._reaper.stop()
        with self._lock:
            live = list(self._live)
        for sandbox in live:
            sandbox.close()
        self._supervisor.close()
        self._berths.close()

    def lacks(self) -> list[str]:
        """What this machine does not give to this user; empty where nothing is missing."""
        lacks = []
        if not self.bounded:
            lacks.append(
                "no control groups may be made: memory is bounded per process and not in all; run as root, or "
                "with a delegated cgroup"
            )
        if self.rootless:
            lacks.append("not root: there is one user inside, and images must belong to this user")
        return lacks

    # For the sandboxes.

    def begin(self, name: str, layers: tuple[Layer, ...], limits: Limits, outlets: Outlets) -> _Room:
        """Start the processes of a sandbox."""
        berth = self._berths.take(limits)
        self._layers.hold(layers)
        try:
            room = self._start(name, layers, limits, outlets, berth)
        except BaseException:
            self._layers.let_go(layers)
            self._berths.give_back(berth.group)
            raise
        self._berths.refill(limits)
        return room

    def _start(
        self, name: str, layers: tuple[Layer, ...], limits: Limits, outlets: Outlets, berth: Berth
    ) -> _Room:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request: list[tuple[str, object]] = [
            ("id", name),
            ("berth", berth.name),
            ("disk", limits.disk_bytes),
            ("inodes", max(10_000, limits.disk_bytes // _BYTES_PER_INODE)),
            *(("layer", layer.name) for layer in reversed(layers)),
        ]
        for port, path in outlets.sockets.items():
            request += [("port", port), ("socket", path)]
        for shared, path in outlets.shared.items():
            request += [("name", shared), ("shared", path)]
        try:
            with theirs:
                pid, mounts = map(int, self._supervisor.ask("create", request, theirs).split())
        except BaseException:
            ours.close()
            raise
        return _Room(name, pid, mounts, ours, layers, berth.group)

    def end(self, room: _Room, *, keep: bool) -> tuple[Layer, ...]:
        """Kill all of a sandbox; its files become a layer, which the caller holds, or are dropped."""
        room.socket.close()
        with contextlib.suppress(SandboxLostError):
            request = [("id", room.name), ("pid", room.pid), ("mounts", room.mounts), ("keep", int(keep))]
            self._supervisor.ask("end", request)
        self._berths.give_back(room.group)
        self._layers.let_go(room.layers)
        return (Layer.of_room(room.name),) if keep else ()

    def hold(self, layers: tuple[Layer, ...]) -> None:
        self._layers.hold(layers)

    def let_go(self, layers: tuple[Layer, ...]) -> None:
        self._layers.let_go(layers)

    def export(self, layer: Layer, path: Path) -> None:
        scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        self._supervisor.ask("export", [("id", layer.name), ("path", scratch)])
        scratch.rename(path)

    @property
    def rootless(self) -> bool:
        return os.geteuid() != 0

    @property
    def bounded(self) -> bool:
        """Whether control groups bound memory and processes."""
        return self._hierarchy is not None


class NamespaceSandbox(Machine):
    """One sandbox. Its processes and its fresh files (the room) are replaced at every reset, snapshot and restore."""

    def __init__(
        self,
        backend: NamespaceBackend,
        image: Image,
        layers: tuple[Layer, ...],
        limits: Limits,
        outlets: Outlets,
    ) -> None:
        super().__init__(f"ns-{uuid.uuid4().hex[:16]}", image, limits)
        self._backend = backend
        self._outlets = outlets
        self._one_user = backend.rootless
        if not backend.bounded:
            self._own_limits = [("pids", limits.pids), ("data", limits.memory_bytes)]
        self._source = layers
        self._rooms = itertools.count()
        self._lock = threading.RLock()
        backend.hold(layers)
        try:
            self._room: _Room | None = self._begin(layers)
        except BaseException:
            backend.let_go(layers)
            raise

    def snapshot(self) -> NamespaceSnapshot:
        with self._lock:
            room = self._need_room()
            if len(room.layers) + 1 >= MAX_LAYERS:
                raise SandboxError(
                    f"snapshots are nested {MAX_LAYERS} deep: start a new sandbox from an image"
                )
            self._room = None
            self._backend.hold(room.layers)
            frozen = self._backend.end(room, keep=True)
            layers = (*room.layers, *frozen)
            snapshot = NamespaceSnapshot(self._backend, self._image, layers)
            self._backend.let_go(layers)
            self._room = self._begin(layers)
            return snapshot

    def restore(self, snapshot: Snapshot) -> None:
        if not isinstance(snapshot, NamespaceSnapshot):
            raise SandboxError(f"a namespace sandbox cannot be restored from a {type(snapshot).__name__}")
        self._replace(snapshot.layers)

    def fork(self) -> NamespaceSandbox:
        snapshot = self.snapshot()
        try:
            return self._backend.create(snapshot, self._limits, **self._outlets.arguments())
        finally:
            snapshot.close()

    def reset(self) -> None:
        self._replace(self._source)

    def export(self, path: Path) -> None:
        """Copy what was written since this sandbox's source to a new directory, as an overlayfs layer."""
        with self.snapshot() as snapshot:
            new = snapshot.layers[len(self._source) :]
            if len(new) != 1:
                raise SandboxError("only a sandbox without earlier snapshots can be exported")
            self._backend.export(new[0], path)

    def close(self) -> None:
        with self._lock:
            room, self._room = self._room, None
            source, self._source = self._source, ()
            if room:
                self._backend.end(room, keep=False)
            self._backend.let_go(source)

    @property
    def pid(self) -> int:
        """Of its first process, on the host."""
        return self._need_room().pid

    def alive(self) -> bool:
        """Whether its processes still run; cheap."""
        room = self._room
        if room is None:
            return False
        poll = select.poll()
        poll.register(room.socket, 0)
        return not poll.poll(0)

    def _replace(self, layers: tuple[Layer, ...]) -> None:
        with self._lock:
            room = self._need_room()
            self._room = None
            fresh = self._begin(layers)
            self._backend.end(room, keep=False)
            self._room = fresh

    def _begin(self, layers: tuple[Layer, ...]) -> _Room:
        name = f"{self._id}.{next(self._rooms)}"
        return self._backend.begin(name, layers, self._limits, self._outlets)

    def _need_room(self) -> _Room:
        room = self._room
        if room is None:
            raise SandboxLostError(f"sandbox {self._id} is closed")
        return room

    def _connect(self) -> socket.socket:
        room = self._need_room()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(room.socket, [b"c"], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        return ours

    def _breach(self, outcome: agent.Outcome) -> Breach | None:
        room = self._room
        hit = room.group.breach() if room and room.group else None
        return hit or ("disk" if outcome.disk_full else None)


class NamespaceSnapshot(Closing):
    """Frozen layers, shared by all that was made from them."""

    def __init__(self, backend: NamespaceBackend, image: Image, layers: tuple[Layer, ...]) -> None:
        self.image = image
        self.layers = layers
        self._backend = backend
        self._closed = False
        backend.hold(layers)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._backend.let_go(self.layers)

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Room:
    """The running part of a sandbox."""

    name: str
    pid: int
    mounts: int
    """The supervisor's descriptor of its mount namespace."""
    socket: socket.socket
    layers: tuple[Layer, ...]
    group: cgroups.Group | None


def _allow_many_files() -> None:
    """Every live sandbox holds one in this process and one in the supervisor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
