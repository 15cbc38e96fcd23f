"""How rooms of namespace sandboxes begin and end: one request to the supervisor each."""

from __future__ import annotations

import contextlib
import select
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

from palestra.envs.sandbox import cgroups
from palestra.envs.sandbox.base import Limits, Outlets
from palestra.envs.sandbox.berths import Berth, Berths
from palestra.envs.sandbox.closing import Closing
from palestra.envs.sandbox.errors import SandboxError, SandboxLostError
from palestra.envs.sandbox.layers import Layer, Layers
from palestra.envs.sandbox.supervisor import Supervisor

_BYTES_PER_INODE = 4096


@dataclass(frozen=True, slots=True)
class NamespaceRoom:
    """The running part of a sandbox. See `Room`."""

    name: str
    pid: int
    mounts: int
    """The supervisor's descriptor of its mount namespace."""
    line: socket.socket
    """Gives the server inside new connections."""
    layers: tuple[Layer, ...]
    group: cgroups.Group | None

    def connect(self) -> socket.socket:
        """See Room."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self.line, [b"c"], [theirs.fileno()])
            except BaseException:
                ours.close()
                raise
        return ours

    def alive(self) -> bool:
        """See Room."""
        poll = select.poll()
        poll.register(self.line, 0)
        return not poll.poll(0)


class NamespaceRooms(Closing):
    """All rooms of one backend and what they stand on; from any thread."""

    def __init__(self, hierarchy: cgroups.Hierarchy | None) -> None:
        """`hierarchy`: where control groups can be made. Raises SandboxSetupError where the kernel forbids it."""
        self._supervisor = Supervisor()
        self._berths = Berths(self._supervisor, cgroups.Groups(hierarchy) if hierarchy else None)
        self.layers = Layers(self._supervisor, self._berths.give_back)

    def begin(self, name: str, layers: tuple[Layer, ...], limits: Limits, outlets: Outlets) -> NamespaceRoom:
        """Start the processes of a sandbox."""
        berth = self._berths.take(limits)
        self.layers.hold(layers)
        try:
            room = self._start(name, layers, limits, outlets, berth)
        except BaseException:
            self.layers.let_go(layers)
            self._berths.give_back(berth.group)
            raise
        self._bound(room, limits)
        self._berths.refill(limits)
        return room

    def end(self, room: NamespaceRoom) -> None:
        """Kill all of a sandbox and drop its files."""
        self._end(room, keep=False)
        self._berths.give_back(room.group)
        self.layers.let_go(room.layers)

    def freeze(self, room: NamespaceRoom) -> tuple[Layer, ...]:
        """Kill all of a sandbox; the layers that its files consist of now. The caller holds the last one."""
        self._end(room, keep=True)
        return (*room.layers, Layer.of_room(room.name, room.group))

    def export(self, layer: Layer, path: Path) -> None:
        """Copy a layer to a new directory."""
        scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
        self._supervisor.ask("export", [("id", layer.name), ("path", scratch)])
        scratch.rename(path)

    def close(self) -> None:
        """End the supervisor, and with it all rooms. Idempotent."""
        self._supervisor.close()
        self._berths.close()

    def _bound(self, room: NamespaceRoom, limits: Limits) -> None:
        """Not before it was built: only then is the memory free that the last user of the group has written."""
        try:
            if room.group:
                room.group.bound(limits)
        except OSError as error:
            self.end(room)
            raise SandboxError(f"cannot bound a sandbox: {error}") from error

    def _start(
        self, name: str, layers: tuple[Layer, ...], limits: Limits, outlets: Outlets, berth: Berth
    ) -> NamespaceRoom:
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
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                pid, mounts = map(int, self._supervisor.ask("create", request, theirs).split())
        except BaseException:
            ours.close()
            raise
        return NamespaceRoom(name, pid, mounts, ours, layers, berth.group)

    def _end(self, room: NamespaceRoom, *, keep: bool) -> None:
        room.line.close()
        request = [("id", room.name), ("pid", room.pid), ("mounts", room.mounts), ("keep", int(keep))]
        with contextlib.suppress(SandboxLostError):
            self._supervisor.ask("end", request)
