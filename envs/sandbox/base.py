"""What a sandbox is: the Protocol of every backend, and the data that goes in and out.

    with NamespaceBackend() as backend:
        sandbox = backend.create(images.build("base"))
        sandbox.write("/work/hello.py", b"print('hello')")
        print(sandbox.exec("python3 hello.py").stdout)  # b'hello\\n'
        twin = sandbox.fork()

All calls block and may come from any thread; several `exec` of one sandbox run at the same time. Inside, a command
has its own root file system, process table, loopback-only network and user, no capabilities, and nothing of the
host. Paths are absolute inside the sandbox or relative to the image's working directory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

MIB = 1 << 20
_SHARED_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

Breach = Literal["time", "cpu", "memory", "pids", "disk", "output"]
"""The limit that ended a command, or that it ran into."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use. Time, CPU and output are per command, the rest for all of it together."""

    timeout_s: float = 60.0
    """Wall seconds of one command, unless `exec` says otherwise. Then everything that runs inside is killed."""
    cpu_s: int = 600
    """CPU seconds of one process."""
    cpus: float | None = None
    """Cores' worth of CPU time that all processes together get; None: no bound."""
    memory_bytes: int = 2048 * MIB
    """Memory of all processes. The namespace backend keeps written files in memory: they count here too."""
    pids: int = 256
    disk_bytes: int = 1024 * MIB
    """Bytes of files written. In Docker this bounds each file, not all of them together."""
    output_bytes: int = MIB
    """Bytes kept of stdout and of stderr; the rest is read, dropped and marked."""
    flood_bytes: int = 64 * MIB
    """Bytes of output after which a command is killed."""


@dataclass(frozen=True, slots=True)
class Image:
    """A root file system, the same one for every backend. Make one with `images.build` or `images.prepare`."""

    name: str
    layers: tuple[Path, ...]
    """Directories, the lowest first: a root file system, then overlayfs uppers on top of it."""
    digest: str
    """SHA-256 of the recipe of all layers."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/work"
    user: str = "agent"
    """Who runs commands unless `exec` says otherwise."""


SHARED = "/run/palestra"
"""Directory inside where sockets and shared files are."""


@dataclass(frozen=True, slots=True)
class Outlets:
    """What of the host a sandbox reaches; see `Backend.create`."""

    sockets: Mapping[int, Path]
    shared: Mapping[str, Path]

    @classmethod
    def of(cls, sockets: Mapping[int, Path] | None, shared: Mapping[str, Path] | None) -> Outlets:
        for name in shared or ():
            if not _SHARED_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot name something shared: use letters, digits, . _ and -")
        return cls(dict(sockets or {}), dict(shared or {}))

    def arguments(self) -> dict[str, Any]:
        """For another call of `create`."""
        return {"sockets": self.sockets, "shared": self.shared}


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command left behind."""

    exit_code: int
    """Status of the command, or minus the signal that ended it. 127: no such command, 126: it cannot be run."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    """Output was dropped."""
    breach: Breach | None = None
    duration_s: float = 0.0
    cpu_s: float = 0.0


class Snapshot(Protocol):
    """The files of a sandbox at one moment, of any number of later sandboxes. Processes are not part of it."""

    @property
    def image(self) -> Image: ...

    def close(self) -> None:
        """Let go of it. Sandboxes made from it stay. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Sandbox(Protocol):
    """One isolated machine.

    Methods raise SandboxLostError once the sandbox has ended, and the OSError of the file system inside
    (FileNotFoundError, PermissionError, ...) for what a path is or is not.
    """

    @property
    def id(self) -> str:
        """Unique for all time."""

    @property
    def image(self) -> Image: ...

    @property
    def limits(self) -> Limits: ...

    def exec(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        user: str | None = None,
    ) -> Finished:
        """Run a command to its end; a string is a script for `bash -c`.

        `env` is added to the image's. What the command leaves in the background goes on until a timeout, a
        `snapshot`, `restore` or `reset`. `user` is "agent" or "root"; neither has capabilities.
        """

    def kill(self) -> None:
        """End all processes inside, also commands that other threads wait for."""

    def read(self, path: str, max_bytes: int = 64 * MIB, *, user: str | None = None) -> bytes:
        """The first `max_bytes` of a regular file."""

    def write(self, path: str, data: bytes, mode: int = 0o644, *, user: str | None = None) -> None:
        """Make or replace a file, with the directories above it."""

    def snapshot(self) -> Snapshot:
        """Keep the files as they are. Ends all processes inside; the sandbox stays usable."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot of this backend, of any sandbox. Ends all processes inside."""

    def fork(self) -> Sandbox:
        """A second sandbox with the same files. Ends all processes inside this one."""

    def reset(self) -> None:
        """Go back to what the sandbox was made from. Ends all processes inside."""

    def digest(self, path: str, ignore: Sequence[str] = ()) -> str:
        """SHA-256 over names, kinds, executable bits, link targets and contents of all that is below `path`.

        `ignore`: shell patterns; what matches by name or by path relative to `path` is left out, with all below it.
        """

    def close(self) -> None:
        """End it and remove all of it. Idempotent."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Backend(Protocol):
    """Makes sandboxes. `close` ends all of them."""

    @property
    def name(self) -> str: ...

    def create(
        self,
        source: Image | Snapshot,
        limits: Limits | None = None,
        *,
        sockets: Mapping[int, Path] | None = None,
        shared: Mapping[str, Path] | None = None,
    ) -> Sandbox:
        """Make a sandbox. Raises SandboxSetupError where this machine cannot, SandboxError where it failed.

        `sockets` is the only way out: loopback port inside -> unix socket of the host that its connections reach.
        The socket itself is inside as /run/palestra/PORT.sock. `shared` are files and directories of the host that
        can be read inside, never written: name -> path, there as /run/palestra/NAME.
        """

    def lacks(self) -> list[str]:
        """What this machine does not give to this user, in sentences; empty where nothing is missing."""

    def reap(self) -> int:
        """Remove what backends of dead processes left on this machine; how many sandboxes that were."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
