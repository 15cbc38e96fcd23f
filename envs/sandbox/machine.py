"""What every sandbox does through the server inside it, whichever backend made it."""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections.abc import Mapping, Sequence

from palestra.envs.sandbox import agent
from palestra.envs.sandbox.base import MIB, Breach, Finished, Image, Limits
from palestra.envs.sandbox.closing import Closing
from palestra.envs.sandbox.digest import TreeDigest

USERS = {"root": (0, 0, "/root"), "agent": (1000, 1000, "/home/agent")}
_CPU_SIGNAL, _FILE_SIZE_SIGNAL = 24, 25


class Machine(Closing):
    """Commands and files of one sandbox. A backend adds how it begins, ends, and keeps its files."""

    def __init__(self, name: str, image: Image, limits: Limits) -> None:
        self._id = name
        self._image = image
        self._limits = limits
        self._digests = TreeDigest()
        self._one_user = False
        self._own_limits: list[tuple[str, object]] = []
        """Of each process, where no control group bounds all of them together."""

    @property
    def id(self) -> str:
        return self._id

    @property
    def image(self) -> Image:
        return self._image

    @property
    def limits(self) -> Limits:
        return self._limits

    # What a backend implements.

    def _connect(self) -> socket.socket:
        """A new connection to the server inside. Raises SandboxLostError or OSError where it is gone."""
        raise NotImplementedError

    def _breach(self, outcome: agent.Outcome) -> Breach | None:
        """Which limit of the backend's own a command that failed ran into."""
        raise NotImplementedError

    # What callers use.

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
        argv = ["bash", "-c", command] if isinstance(command, str) else list(command)
        request = self.request(argv, cwd=cwd, env=env, user=user)
        began = time.perf_counter()
        outcome = agent.run(
            self._connect,
            request,
            stdin,
            timeout_s=self._limits.timeout_s if timeout_s is None else timeout_s,
            output_bytes=self._limits.output_bytes,
            flood_bytes=self._limits.flood_bytes,
        )
        return self.finished(outcome, argv, time.perf_counter() - began)

    def kill(self) -> None:
        request = [
            *self._who("exec", None, "/"),
            ("arg", "sleep"),
            ("arg", "60"),
            ("env", "PATH=/usr/bin:/bin"),
        ]
        agent.run(self._connect, agent.fields(request), b"", timeout_s=0, output_bytes=0, flood_bytes=MIB)

    def read(self, path: str, max_bytes: int = 64 * MIB, *, user: str | None = None) -> bytes:
        fd = self._open(path, os.O_RDONLY, user=user)
        with os.fdopen(fd, "rb", buffering=0) as file:
            _need_regular(fd, path)
            return _read_up_to(file.fileno(), max_bytes)

    def write(self, path: str, data: bytes, mode: int = 0o644, *, user: str | None = None) -> None:
        fd = self._open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=mode, parents=True, user=user)
        with os.fdopen(fd, "wb", buffering=0):
            _need_regular(fd, path)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)

    def digest(self, path: str, ignore: Sequence[str] = ()) -> str:
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return self._digests.of(fd, ignore)
        finally:
            os.close(fd)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._id} of {self._image.name}>"

    # For what runs commands in other ways (snippets.py).

    def request(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> bytes:
        """What the server is asked, to run a command."""
        return agent.fields(
            [
                *self._who("exec", user, cwd),
                ("cpu_s", self._limits.cpu_s),
                *self._own_limits,
                *(("arg", arg) for arg in argv),
                *(("env", f"{name}={value}") for name, value in self._env(env, user).items()),
            ]
        )

    def start(self, request: bytes, fds: list[int]) -> socket.socket:
        """Run a command on these descriptors and do not wait. To close the connection kills all that is inside."""
        return agent.start(self._connect, request, fds)

    def finished(self, outcome: agent.Outcome, argv: Sequence[str], duration_s: float) -> Finished:
        """Apply the rules: which status and which breach an outcome is."""
        code, stderr = outcome.exit_code, outcome.stderr
        if outcome.exec_errno or outcome.unforked:
            number = outcome.exec_errno or errno.EAGAIN
            code = 127 if number == errno.ENOENT else 126
            stderr += f"sandbox: cannot run {argv[0] if argv else ''}: {os.strerror(number)}\n".encode()
        return Finished(
            exit_code=code,
            stdout=outcome.stdout,
            stderr=stderr,
            timed_out=outcome.timed_out,
            truncated=outcome.truncated,
            breach=self._which_breach(outcome),
            duration_s=duration_s,
            cpu_s=outcome.cpu_s,
        )

    def _open(
        self, path: str, flags: int, *, mode: int = 0o644, parents: bool = False, user: str | None = None
    ) -> int:
        request = [("path", path), ("flags", flags), ("mode", mode), ("parents", int(parents))]
        return agent.open_file(self._connect, agent.fields([*self._who("open", user, None), *request]), path)

    def _who(self, op: str, user: str | None, cwd: str | None) -> list[tuple[str, object]]:
        uid, gid, _ = self._user(user)
        return [("op", op), ("uid", uid), ("gid", gid), ("cwd", self._path(cwd))]

    def _user(self, user: str | None) -> tuple[int, int, str]:
        name = user or self._image.user
        if name not in USERS:
            raise ValueError(f"no user {name!r} in a sandbox; there are {', '.join(USERS)}")
        return (-1, -1, USERS["agent"][2]) if self._one_user else USERS[name]

    def _path(self, cwd: str | None) -> str:
        return os.path.join(self._image.workdir, cwd or "")

    def _env(self, env: Mapping[str, str] | None, user: str | None) -> dict[str, str]:
        return {**self._image.env, "HOME": self._user(user)[2], **(env or {})}

    def _which_breach(self, outcome: agent.Outcome) -> Breach | None:
        if outcome.timed_out:
            return "time"
        if outcome.flooded:
            return "output"
        if outcome.exit_code in (-_CPU_SIGNAL, 128 + _CPU_SIGNAL):
            return "cpu"
        if outcome.exit_code in (-_FILE_SIZE_SIGNAL, 128 + _FILE_SIZE_SIGNAL):
            return "disk"
        if outcome.exit_code == 0:
            return None
        return "pids" if outcome.unforked else self._breach(outcome)


def _need_regular(fd: int, path: str) -> None:
    mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


def _read_up_to(fd: int, max_bytes: int) -> bytes:
    chunks, left = [], max_bytes
    while left and (chunk := os.read(fd, min(left, MIB))):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)
