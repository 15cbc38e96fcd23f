"""Machines for tasks: the broken tree of a task is put on one once, and every other starts from that snapshot."""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from palestra.envs.errors import EnvSetupError
from palestra.envs.sandbox.base import Backend, Image, Limits, Sandbox, Snapshot
from palestra.rewards.swe.machine import MachineError
from palestra.rewards.swe.worktree import prepare
from palestra.tasks.errors import TaskError
from palestra.tasks.swe.repair import Repair, repair_of, tree_of
from palestra.tasks.task import Task

LIMITS = Limits(timeout_s=60.0, pids=512)
MAX_SNAPSHOTS = 512


class Workshop:
    """Prepares machines and keeps their snapshots, the ones used last. Safe between threads."""

    def __init__(
        self, backend: Backend, images: Callable[[str], Image], max_snapshots: int = MAX_SNAPSHOTS
    ) -> None:
        """`images` finds an image by its name."""
        self.backend = backend
        self._images, self._max_snapshots = images, max_snapshots
        self._kept: OrderedDict[str, Snapshot] = OrderedDict()
        self._lock = threading.Lock()
        self._making: dict[str, threading.Lock] = {}

    def fresh(
        self,
        task: Task,
        *,
        sockets: Mapping[int, Path] | None = None,
        shared: Mapping[str, Path] | None = None,
    ) -> Sandbox:
        """A machine with the broken tree of `task` that nobody has touched; close it.

        `sockets`, `shared`: see `Backend.create`. Raises EnvSetupError where the task is at fault, SandboxError where
        the backend is.
        """
        return self.machine(_repair(task), sockets=sockets, shared=shared)

    def machine(
        self,
        repair: Repair,
        *,
        sockets: Mapping[int, Path] | None = None,
        shared: Mapping[str, Path] | None = None,
    ) -> Sandbox:
        """The same for the data of a task."""
        key = _key(repair)
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            if key not in self._kept:
                self._keep(key, self._prepared(repair))
            return self.backend.create(self._kept[key], LIMITS, sockets=sockets, shared=shared)

    def close(self) -> None:
        """Let go of the snapshots and end the backend."""
        with self._lock:
            for snapshot in self._kept.values():
                snapshot.close()
            self._kept.clear()
        self.backend.close()

    def _keep(self, key: str, snapshot: Snapshot) -> None:
        with self._lock:
            self._kept[key] = snapshot
            while len(self._kept) > self._max_snapshots:
                old, gone = self._kept.popitem(last=False)
                self._making.pop(old, None)
                gone.close()

    def _prepared(self, repair: Repair) -> Snapshot:
        try:
            tree = tree_of(repair)
            with self.backend.create(self._images(repair.image), LIMITS) as machine:
                prepare(machine, repair, tree)
                return machine.snapshot()
        except (TaskError, MachineError) as error:
            raise EnvSetupError(str(error)) from error


def workshop(backend: str = "namespace") -> Workshop:
    """The workshop of this process for a backend, namespace or docker. Raises EnvSetupError, SandboxSetupError."""
    return _workshop(backend, os.getpid())


@functools.cache
def _workshop(name: str, pid: int) -> Workshop:
    from palestra.envs.sandbox import images
    from palestra.envs.sandbox.backends import open_backend

    try:
        made = Workshop(open_backend(name), images.build)
    except ValueError as error:
        raise EnvSetupError(str(error)) from error
    atexit.register(made.close)
    return made


def _repair(task: Task) -> Repair:
    try:
        return repair_of(task)
    except TaskError as error:
        raise EnvSetupError(str(error)) from error


def _key(repair: Repair) -> str:
    """What decides how the machine looks."""
    parts = repair.model_dump(mode="json", include={"source", "image", "workdir", "setup"})
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
