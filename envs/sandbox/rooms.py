"""Sandboxes that live in one room after the other: their processes and fresh files are replaced as a whole."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from typing import Generic, Protocol, Self, TypeVar, cast

from palestra.envs.sandbox import agent
from palestra.envs.sandbox.base import Backend, Breach, Image, Limits, Outlets, Snapshot
from palestra.envs.sandbox.cgroups import Group
from palestra.envs.sandbox.errors import SandboxLostError
from palestra.envs.sandbox.machine import Machine


class Room(Protocol):
    """The running part of a sandbox."""

    @property
    def group(self) -> Group | None:
        """What bounds it, where that can be seen."""

    def connect(self) -> socket.socket:
        """A new connection to the server inside. Raises OSError where it is gone."""

    def alive(self) -> bool:
        """Whether its processes still run; cheap."""


R = TypeVar("R", bound=Room)
S = TypeVar("S")


class RoomedSandbox(Machine, ABC, Generic[R, S]):
    """One sandbox in rooms of type R, which are begun from sources of type S: layers, or an image of a daemon."""

    def __init__(
        self, name: str, backend: Backend, image: Image, source: S, limits: Limits, outlets: Outlets
    ) -> None:
        super().__init__(name, image, limits)
        self._maker, self._source, self._outlets = backend, source, outlets
        self._lock = threading.RLock()
        self._room: R | None = None
        self._closed = False

    # What a backend implements.

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """See Sandbox."""

    @abstractmethod
    def _begin(self, source: S) -> R:
        """A running room with the files of `source`."""

    @abstractmethod
    def _end(self, room: R) -> None:
        """End its processes and drop its files."""

    @abstractmethod
    def _let_go(self, source: S) -> None:
        """This sandbox does not go back to `source` any more."""

    # What callers use.

    def fork(self) -> Self:
        """See Sandbox."""
        with self.snapshot() as snapshot:
            return cast(Self, self._maker.create(snapshot, self._limits, **self._outlets.arguments()))

    def reset(self) -> None:
        """See Sandbox."""
        self._replace(self._source)

    def close(self) -> None:
        """See Sandbox."""
        with self._lock:
            room, self._room = self._room, None
            if room:
                self._end(room)
            if not self._closed:
                self._closed = True
                self._let_go(self._source)

    def alive(self) -> bool:
        """Whether its processes still run; cheap."""
        room = self._room
        return room is not None and room.alive()

    def _move_in(self) -> None:
        """Begin the first room."""
        try:
            self._room = self._begin(self._source)
        except BaseException:
            self.close()
            raise

    def _replace(self, source: S) -> None:
        """Where the new room cannot begin, the old one stays."""
        with self._lock:
            old = self._need_room()
            self._room = self._begin(source)
            self._end(old)

    def _need_room(self) -> R:
        room = self._room
        if room is None:
            raise SandboxLostError(f"sandbox {self._id} is closed")
        return room

    def _connect(self) -> socket.socket:
        return self._need_room().connect()

    def _breach(self, outcome: agent.Outcome) -> Breach | None:
        room = self._room
        hit = room.group.breach() if room and room.group else None
        return hit or ("disk" if outcome.disk_full else None)
