"""Sandboxes of Docker containers, for machines where only Docker is allowed. Needs the extra [docker].

Every container is hardened (no network, no capabilities but the three that the server inside needs to step down,
no new privileges, memory, pids and CPU bounded) and has the server of native/ as its process 1, behind a unix
socket in a mounted directory: a command costs what it costs in the namespace backend, not a `docker exec`. Snapshots
are committed layers. Containers, images and directories carry the label of the process that made them.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import uuid
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import docker.errors

from palestra.envs.sandbox import owner
from palestra.envs.sandbox.base import Image, Limits, Outlets, Snapshot
from palestra.envs.sandbox.closing import Closing
from palestra.envs.sandbox.docker_rooms import ABSENT, OWNER, DockerRoom, begin
from palestra.envs.sandbox.errors import SandboxError, SandboxSetupError
from palestra.envs.sandbox.images import as_tar
from palestra.envs.sandbox.rooms import RoomedSandbox
from palestra.envs.sandbox.timer import Repeat

REPOSITORY = "palestra/image"
SNAPSHOTS = "palestra/snapshot"
REAP_EVERY_S = 300.0
_DIRECTORY_PREFIX = "palestra-docker-"


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
        self._snapshots: set[str] = set()
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
            base, image = source.need_base(), source.image
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
            with contextlib.suppress(*ABSENT):
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
        for tag in list(self._snapshots):
            self.remove_image(tag)
        shutil.rmtree(self.directory, ignore_errors=True)
        self.client.close()

    def commit(self, room: DockerRoom) -> str:
        """The tag of a new image of what is in a room. Raises the APIError of the daemon."""
        tag = f"{SNAPSHOTS}:{uuid.uuid4().hex}"
        room.container.commit(*tag.split(":"))
        self._snapshots.add(tag)
        return tag

    def remove_image(self, name: str) -> None:
        """Remove it if it is there."""
        self._snapshots.discard(name)
        with contextlib.suppress(*ABSENT):
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


class DockerSandbox(RoomedSandbox[DockerRoom, _Base]):
    """One container at a time; reset and restore replace it."""

    def __init__(
        self, backend: DockerBackend, image: Image, base: _Base, limits: Limits, outlets: Outlets
    ) -> None:
        super().__init__(f"docker-{uuid.uuid4().hex[:16]}", backend, image, base, limits, outlets)
        self._backend = backend
        self._own_limits = [("fsize", limits.disk_bytes)]
        base.holders += 1
        self._move_in()

    def snapshot(self) -> DockerSnapshot:
        """See Sandbox."""
        with self._lock:
            room = self._need_room()
            self.kill()
            try:
                tag = self._backend.commit(room)
            except docker.errors.APIError as error:
                raise SandboxError(f"cannot commit sandbox {self._id}: {error}") from error
            return DockerSnapshot(self._image, _Base(tag, self._backend))

    def restore(self, snapshot: Snapshot) -> None:
        """See Sandbox."""
        if not isinstance(snapshot, DockerSnapshot):
            raise SandboxError(f"a docker sandbox cannot be restored from a {type(snapshot).__name__}")
        self._replace(snapshot.need_base())

    def _begin(self, source: _Base) -> DockerRoom:
        backend = self._backend
        return begin(
            backend.client, backend.directory, backend.label, source.tag, self._limits, self._outlets
        )

    def _end(self, room: DockerRoom) -> None:
        room.end()

    def _let_go(self, source: _Base) -> None:
        source.let_go()


class DockerSnapshot(Closing):
    """A committed layer, shared by all that was made from it."""

    def __init__(self, image: Image, base: _Base) -> None:
        self.image = image
        self._base = base
        self._closed = False
        base.holders += 1

    def need_base(self) -> _Base:
        """The image. Raises SandboxError once it is closed."""
        if self._closed:
            raise SandboxError("the snapshot is closed")
        return self._base

    def close(self) -> None:
        """See Snapshot."""
        if not self._closed:
            self._closed = True
            self._base.let_go()
