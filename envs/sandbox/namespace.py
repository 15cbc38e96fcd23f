"""Sandboxes of Linux namespaces: no daemon, a millisecond to make one. The default.

Every sandbox has mount, process, IPC, host-name and network namespaces of its own, a root file system of overlayfs
(the image read-only below, a tmpfs on top), a control group, a seccomp filter and no capabilities. As an ordinary
user a user namespace comes on top, "agent" is the only user, and limits of memory and processes depend on what the
system delegates (`palestra sandbox check`). Files that are written live in memory.

A snapshot freezes the tmpfs into a layer and the sandbox goes on with a fresh one above it: no data is copied.
"""

from __future__ import annotations

import itertools
import logging
import os
import resource
import threading
import uuid
import weakref
from collections.abc import Mapping
from pathlib import Path

from palestra.envs.sandbox import cgroups
from palestra.envs.sandbox.base import Image, Limits, Outlets, Snapshot
from palestra.envs.sandbox.closing import Closing
from palestra.envs.sandbox.errors import SandboxError
from palestra.envs.sandbox.layers import Layer, Layers
from palestra.envs.sandbox.namespace_rooms import NamespaceRoom, NamespaceRooms
from palestra.envs.sandbox.rooms import RoomedSandbox
from palestra.envs.sandbox.timer import Repeat

log = logging.getLogger(__name__)

MAX_LAYERS = 128
REAP_EVERY_S = 300.0


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
        self.rooms = NamespaceRooms(hierarchy)
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
            frozen: tuple[Layer, ...] = tuple(self.rooms.layers.of_directory(path) for path in source.layers)
            image = source
        elif isinstance(source, NamespaceSnapshot):
            frozen, image = source.need_layers(), source.image
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
        self.rooms.close()

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

    @property
    def rootless(self) -> bool:
        return os.geteuid() != 0

    @property
    def bounded(self) -> bool:
        """Whether control groups bound memory and processes."""
        return self._hierarchy is not None


class NamespaceSandbox(RoomedSandbox[NamespaceRoom, tuple[Layer, ...]]):
    """One sandbox; what it was made from is layers."""

    def __init__(
        self,
        backend: NamespaceBackend,
        image: Image,
        layers: tuple[Layer, ...],
        limits: Limits,
        outlets: Outlets,
    ) -> None:
        super().__init__(f"ns-{uuid.uuid4().hex[:16]}", backend, image, layers, limits, outlets)
        self._rooms = backend.rooms
        self._numbers = itertools.count()
        self._one_user = backend.rootless
        if not backend.bounded:
            self._own_limits = [("pids", limits.pids), ("data", limits.memory_bytes)]
        self._rooms.layers.hold(layers)
        self._move_in()

    def snapshot(self) -> NamespaceSnapshot:
        """See Sandbox."""
        with self._lock:
            room = self._need_room()
            if len(room.layers) + 1 >= MAX_LAYERS:
                raise SandboxError(
                    f"snapshots are nested {MAX_LAYERS} deep: start a new sandbox from an image"
                )
            self._room = None
            layers = self._rooms.freeze(room)
            snapshot = NamespaceSnapshot(self._rooms.layers, self._image, layers)
            self._rooms.layers.let_go(layers)
            try:
                self._room = self._begin(layers)
            except BaseException:
                snapshot.close()
                raise
            return snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """See Sandbox."""
        if not isinstance(snapshot, NamespaceSnapshot):
            raise SandboxError(f"a namespace sandbox cannot be restored from a {type(snapshot).__name__}")
        self._replace(snapshot.need_layers())

    def export(self, path: Path) -> None:
        """Copy what was written since this sandbox's source to a new directory, as an overlayfs layer."""
        with self.snapshot() as snapshot:
            new = snapshot.layers[len(self._source) :]
            if len(new) != 1:
                raise SandboxError("only a sandbox without earlier snapshots can be exported")
            self._rooms.export(new[0], path)

    @property
    def pid(self) -> int:
        """Of its first process, on the host."""
        return self._need_room().pid

    def _begin(self, source: tuple[Layer, ...]) -> NamespaceRoom:
        name = f"{self._id}.{next(self._numbers)}"
        return self._rooms.begin(name, source, self._limits, self._outlets)

    def _end(self, room: NamespaceRoom) -> None:
        self._rooms.end(room)

    def _let_go(self, source: tuple[Layer, ...]) -> None:
        self._rooms.layers.let_go(source)


class NamespaceSnapshot(Closing):
    """Frozen layers, shared by all that was made from them."""

    def __init__(self, keeper: Layers, image: Image, layers: tuple[Layer, ...]) -> None:
        self.image = image
        self.layers = layers
        self._keeper = keeper
        self._closed = False
        keeper.hold(layers)

    def need_layers(self) -> tuple[Layer, ...]:
        """The layers. Raises SandboxError once it is closed."""
        if self._closed:
            raise SandboxError("the snapshot is closed")
        return self.layers

    def close(self) -> None:
        """See Snapshot."""
        if not self._closed:
            self._closed = True
            self._keeper.let_go(self.layers)

    def __del__(self) -> None:
        self.close()


def _allow_many_files() -> None:
    """Every live sandbox holds one in this process and one in the supervisor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
