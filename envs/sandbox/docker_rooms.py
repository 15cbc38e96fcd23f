"""Rooms of Docker sandboxes: a hardened container each, with the server of native/ as its process 1."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import docker.errors

from palestra.envs.sandbox import cgroups
from palestra.envs.sandbox.base import Limits, Outlets
from palestra.envs.sandbox.errors import SandboxError
from palestra.envs.sandbox.native import program

OWNER = "palestra.owner"
START_TIMEOUT_S = 60.0
ABSENT = (docker.errors.NotFound, docker.errors.APIError)
_INSIDE = "/run/palestra"
_PROGRAM = "/run/palestra-sandbox"


def begin(
    client: docker.DockerClient, parent: Path, label: str, tag: str, limits: Limits, outlets: Outlets
) -> DockerRoom:
    """A container of image `tag`; its socket is in a directory of its own below `parent`. Raises SandboxError."""
    directory = Path(tempfile.mkdtemp(dir=parent))
    directory.chmod(0o755)
    options = {"labels": {OWNER: label}, **_hardened(limits), **_outlets(outlets, directory)}
    try:
        container = client.containers.create(tag, **options)  # run() would ask a registry for what is missing
    except docker.errors.DockerException as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise SandboxError(f"Docker cannot make a sandbox: {error}") from error
    room = DockerRoom(container, directory)
    room.start()
    return room


def _hardened(limits: Limits) -> dict[str, Any]:
    return {
        "command": [],
        "detach": True,
        "auto_remove": True,
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
    }


def _outlets(outlets: Outlets, directory: Path) -> dict[str, Any]:
    return {
        "entrypoint": [_PROGRAM, "agent", f"{_INSIDE}/agent.sock", *map(str, outlets.sockets)],
        "volumes": [
            f"{directory}:{_INSIDE}:rw",
            f"{program()}:{_PROGRAM}:ro",
            *(f"{path}:{_INSIDE}/{port}.sock:rw" for port, path in outlets.sockets.items()),
            *(f"{path}:{_INSIDE}/{name}:ro" for name, path in outlets.shared.items()),
        ],
    }


@dataclass(slots=True)
class DockerRoom:
    """A running container and the directory of its socket. See `Room`."""

    container: Any
    directory: Path
    lifeline: socket.socket | None = None
    group: cgroups.Group | None = field(default=None)

    def connect(self) -> socket.socket:
        """See Room."""
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(self.directory / "agent.sock"))
        except BaseException:
            connection.close()
            raise
        return connection

    def alive(self) -> bool:
        """See Room."""
        try:
            self.connect().close()
        except OSError:
            return False
        return True

    def start(self) -> None:
        """Start it and wait until its server answers. Raises SandboxError; nothing of it is left then."""
        try:
            self.container.start()
        except docker.errors.DockerException as error:
            self.end()
            raise SandboxError(f"Docker cannot start a sandbox: {error}") from error
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        """The first connection: when it closes, the container ends and removes itself."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.lifeline is None:
            try:
                self.lifeline = self.connect()
            except OSError as error:
                if time.monotonic() > deadline or not self._running():
                    self.end()
                    raise SandboxError(f"the agent in the container did not start: {error}") from error
                time.sleep(0.002)
        self.group = cgroups.group_of(self._pid())

    def end(self) -> None:
        """Remove it."""
        if self.lifeline:
            self.lifeline.close()
        with contextlib.suppress(*ABSENT):
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
