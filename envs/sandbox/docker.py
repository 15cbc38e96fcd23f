"""Sandboxes of Docker containers, for machines where only Docker is allowed. Needs the extra [docker].

Every container is hardened (no network, no capabilities but the three that the server inside needs to step down,
no new privileges, memory, pids and CPU bounded) and has the server of native/ as its process 1, behind a unix
socket in a mounted directory: a command costs what it costs in the namespace backend, not a `docker exec`. Snapshots
are committed layers. Containers, images and directories carry the label of the process that made them.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import docker.errors

from palestra.envs.sandbox import agent, cgroups, owner
from palestra.envs.sandbox.base import Breach, Image, Limits, Outlets, Snapshot
from palestra.envs.sandbox.closing import Closing
from palestra.envs.sandbox.errors import SandboxError, SandboxLostError, SandboxSetupError
from palestra.envs.sandbox.images import as_tar
from palestra.envs.sandbox.machine import Machine
from palestra.envs.sandbox.native import program
from palestra.envs.sandbox.timer import Repeat

OWNER = "palestra.owner"
REPOSITORY = "palestra/image"
SNAPSHOTS = "palestra/snapshot"
START_TIMEOUT_S = 60.0
REAP_EVERY_S = 300.0
_INSIDE = "/run/palestra"
_PROGRAM = "/run/palestra-sandbox"
_DIRECTORY_PREFIX = "palestra-docker-"
_ABSENT = (docker.errors.NotFound, docker.errors.APIError)


class DockerBackend(Closing):
    """Makes sandboxes of containers, through the daemon that `DOCKER_HOST` names. From any thread."""

    name = "docker"

    def __init__(self) -> None:
        """Raises SandboxSetupError where no daemon answers."""
        try:
            self.client = docker.from_env(timeout=120)
            self.client.ping()
        except docker.errors.DockerException as error:
            raise SandboxSetupError(
                f"no Docker daemon answers: {error}; start dockerd or set DOCKER_HOST"
            ) from error
        self.label = owner.label()
        self.directory = Path(tempfile.mkdtemp(prefix=f"{_DIRECTORY_PREFIX}{self.label}-"))
        self._live: weakref.WeakSet[DockerSandbox] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        self.reap()
        self._reaper = Repeat(self.reap, REAP_EVERY_S)

    def create(
        self,
        source: Image | Snapshot,
        limits: Limits | None = None,
        *,
        sockets: Mapping[int, Path] | None = None,
        shared: Mapping[str, Path] | None = None,
    ) -> DockerSandbox:
        if isinstance(source, Image):
            base, image = _Base(self.tag_of(source)), source
        elif isinstance(source, DockerSnapshot):
            base, image = source.base, source.image
        else:
            raise SandboxError(f"the docker backend cannot start from a {type(source).__name__}")
        sandbox = DockerSandbox(self, image, base, limits or Limits(), Outlets.of(sockets, shared))
        with self._lock:
            self._live.add(sandbox)
        return sandbox

    def lacks(self) -> list[str]:
        driver = self.client.info()["Driver"]
        return [f"the storage driver {driver} bounds the size of one file, not of all files together"]

    def reap(self) -> int:
        dead = [
            c
            for c in self._labelled(
                self.client.containers.list(all=True, ignore_removed=True, filters={"label": OWNER})
            )
            if c
        ]
        for container in dead:
            with contextlib.suppress(*_ABSENT):
                container.remove(force=True, v=True)
        for image in self._labelled(self._images(OWNER)):
            self.remove_image(image.id)
        for path in Path(tempfile.gettempdir()).glob(f"{_DIRECTORY_PREFIX}*"):
            if not owner.alive("-".join(path.name.removeprefix(_DIRECTORY_PREFIX).split("-")[:2])):
                shutil.rmtree(path, ignore_errors=True)
        return len(dead)

    def _images(self, label: str) -> list[Any]:
        while True:
            with contextlib.suppress(docker.errors.NotFound):  # one was removed while they were listed
                return list(self.client.images.list(all=True, filters={"label": label}))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._reaper.stop()
        with self._lock:
            live = list(self._live)
        for sandbox in live:
            sandbox.close()
        for image in self._images(f"{OWNER}={self.label}"):
            self.remove_image(image.id)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.client.close()

    def remove_image(self, name: str) -> None:
        with contextlib.suppress(*_ABSENT):
            self.client.images.remove(name, force=True)

    def _labelled(self, found: list[Any]) -> Iterator[Any]:
        """Those whose owner is dead."""
        for thing in found:
            labels = thing.labels if hasattr(thing, "labels") else {}
            if OWNER in labels and not owner.alive(labels[OWNER]):
                yield thing

    def tag_of(self, image: Image) -> str:
        """The tag under which the daemon has this root file system; hands it over the first time."""
        tag = f"{REPOSITORY}:{image.digest[:32]}"
        with self._lock:
            try:
                self.client.images.get(tag)
            except docker.errors.ImageNotFound:
                with as_tar(image) as stream:
                    self.client.api.import_image(
                        src=stream, repository=REPOSITORY, tag=image.digest[:32], stream_src=True
                    )
        return tag


class DockerSandbox(Machine):
    """One container at a time; reset and restore replace it."""

    def __init__(
        self, backend: DockerBackend, image: Image, base: _Base, limits: Limits, outlets: Outlets
    ) -> None:
        super().__init__(f"docker-{uuid.uuid4().hex[:16]}", image, limits)
        self._backend = backend
        self._outlets = outlets
        self._source = base
        self._lock = threading.RLock()
        self._own_limits = [("fsize", limits.disk_bytes)]
        base.holders += 1
        self._room: _Room | None = self._begin(base)

    def snapshot(self) -> DockerSnapshot:
        with self._lock:
            room = self._need_room()
            self.kill()
            tag = uuid.uuid4().hex
            try:
                room.container.commit(repository=SNAPSHOTS, tag=tag)
            except docker.errors.APIError as error:
                raise SandboxError(f"cannot commit sandbox {self._id}: {error}") from error
            base = _Base(f"{SNAPSHOTS}:{tag}", self._backend)
            return DockerSnapshot(self._image, base)

    def restore(self, snapshot: Snapshot) -> None:
        if not isinstance(snapshot, DockerSnapshot):
            raise SandboxError(f"a docker sandbox cannot be restored from a {type(snapshot).__name__}")
        self._replace(snapshot.base)

    def fork(self) -> DockerSandbox:
        snapshot = self.snapshot()
        try:
            return self._backend.create(snapshot, self._limits, **self._outlets.arguments())
        finally:
            snapshot.close()

    def reset(self) -> None:
        self._replace(self._source)

    def close(self) -> None:
        with self._lock:
            room, self._room = self._room, None
            if room:
                room.end()
                self._source.let_go()

    def alive(self) -> bool:
        """Whether the server inside still answers; cheap."""
        try:
            self._connect().close()
        except (OSError, SandboxLostError):
            return False
        return True

    def _replace(self, base: _Base) -> None:
        with self._lock:
            room = self._need_room()
            fresh = self._begin(base)
            self._room = fresh
            room.end()

    def _begin(self, base: _Base) -> _Room:
        directory = Path(tempfile.mkdtemp(dir=self._backend.directory))
        directory.chmod(0o755)
        try:
            container = self._backend.client.containers.run(**self._options(base, directory))
        except docker.errors.DockerException as error:
            shutil.rmtree(directory, ignore_errors=True)
            raise SandboxError(f"Docker cannot start a sandbox: {error}") from error
        room = _Room(container, directory)
        room.wait_until_ready()
        return room

    def _options(self, base: _Base, directory: Path) -> dict[str, Any]:
        limits = self._limits
        mounts = {str(directory): _INSIDE, str(program()): _PROGRAM}
        sockets = {str(path): f"{_INSIDE}/{port}.sock" for port, path in self._outlets.sockets.items()}
        shared = {str(path): f"{_INSIDE}/{name}" for name, path in self._outlets.shared.items()}
        return {
            "image": base.tag,
            "entrypoint": [_PROGRAM, "agent", f"{_INSIDE}/agent.sock", *map(str, self._outlets.sockets)],
            "command": [],
            "detach": True,
            "auto_remove": True,
            "labels": {OWNER: self._backend.label},
            "hostname": "sandbox",
            "user": "0:0",
            "network_mode": "none",
            "cap_drop": ["ALL"],
            "cap_add": ["SETUID", "SETGID", "KILL"],
            "security_opt": ["no-new-privileges"],
            "ipc_mode": "private",
            "pids_limit": limits.pids,
            "mem_limit": limits.memory_bytes,
            "memswap_limit": limits.memory_bytes,
            "nano_cpus": int(limits.cpus * 1e9) if limits.cpus else None,
            "tmpfs": {"/run": "rw,nosuid,nodev,size=16m,mode=755"},
            "shm_size": min(limits.disk_bytes, limits.memory_bytes),
            "volumes": [
                f"{outside}:{inside}:{'ro' if inside == _PROGRAM or outside in shared else 'rw'}"
                for outside, inside in {**mounts, **sockets, **shared}.items()
            ],
        }

    def _need_room(self) -> _Room:
        room = self._room
        if room is None:
            raise SandboxLostError(f"sandbox {self._id} is closed")
        return room

    def _connect(self) -> socket.socket:
        return _connect_to(self._need_room().directory)

    def _breach(self, outcome: agent.Outcome) -> Breach | None:
        room = self._room
        hit = room.group.breach() if room and room.group else None
        return hit or ("disk" if outcome.disk_full else None)


class DockerSnapshot:
    """A committed layer, shared by all that was made from it."""

    def __init__(self, image: Image, base: _Base) -> None:
        self.image = image
        self.base = base
        self._closed = False
        base.holders += 1

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.base.let_go()


@dataclass(slots=True)
class _Base:
    """An image of the daemon; a snapshot's is removed with its last holder."""

    tag: str
    backend: DockerBackend | None = None
    holders: int = 0

    def let_go(self) -> None:
        self.holders -= 1
        if self.holders == 0 and self.backend:
            self.backend.remove_image(self.tag)


@dataclass(slots=True)
class _Room:
    """A running container and the directory of its socket."""

    container: Any
    directory: Path
    lifeline: socket.socket | None = None
    group: cgroups.Group | None = field(default=None)

    def wait_until_ready(self) -> None:
        """The first connection: when it closes, the container ends and removes itself."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.lifeline is None:
            try:
                self.lifeline = _connect_to(self.directory)
            except OSError as error:
                if time.monotonic() > deadline or not self._running():
                    self.end()
                    raise SandboxError(f"the agent in the container did not start: {error}") from error
                time.sleep(0.002)
        self.group = cgroups.group_of(self._pid())

    def end(self) -> None:
        if self.lifeline:
            self.lifeline.close()
        with contextlib.suppress(*_ABSENT):
            self.container.remove(force=True, v=True)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _running(self) -> bool:
        try:
            self.container.reload()
        except docker.errors.NotFound:
            return False
        return bool(self.container.status in ("created", "running"))

    def _pid(self) -> int:
        self.container.reload()
        return int(self.container.attrs["State"]["Pid"])


def _connect_to(directory: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(directory / "agent.sock"))
    except BaseException:
        connection.close()
        raise
    return connection
