"""Talking to the server inside a sandbox (native/agent.c): commands to run, files to open."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from palestra.envs.sandbox.errors import SandboxError, SandboxLostError

Connect = Callable[[], socket.socket]
"""A new connection to the server. Raises OSError where it is gone."""

RESULT = struct.Struct("=IiQII")
EXITED, FAILED, UNFORKED = 1, 2, 3
KILL_GRACE_S = 20.0
DRAIN_BYTES = 1 << 20
MAX_REQUEST_BYTES = 8 << 20
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one command did, before rules are applied to it."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool
    flooded: bool
    truncated: bool
    cpu_s: float
    disk_full: bool
    unforked: bool
    """There was no room for another process."""
    exec_errno: int
    """Why it could not be started; 0 where it was."""


def fields(pairs: Iterable[tuple[str, object]]) -> bytes:
    """Encode a request. Raises ValueError for a NUL byte in a value."""
    parts = [f"{key}={value}".encode(errors="surrogateescape") for key, value in pairs]
    if any(b"\0" in part for part in parts):
        raise ValueError("a command, path or variable for a sandbox contains a NUL byte")
    return b"".join(part + b"\0" for part in parts)


def open_file(connect: Connect, request: bytes, path: str) -> int:
    """A descriptor of a file that the server opened inside. Raises the OSError that opening it gave."""
    with connected(connect) as connection:
        ask(connection, request, [])
        word, fds, _, _ = socket.recv_fds(connection, 1, 1)
        connection.settimeout(KILL_GRACE_S)
        if word == b"F" and fds:
            _await_end(connection)
            return fds[0]
        kind, number = _result(word + connection.recv(RESULT.size - 1))[:2]
        if kind != FAILED:
            raise SandboxError(f"cannot open {path!r} in the sandbox: result {kind}, {number}")
        _await_end(connection)
        raise OSError(number, os.strerror(number), path)


def _await_end(connection: socket.socket) -> None:
    """Wait for the last result of a request: to hang up before that is the order to kill all that is inside."""
    _result(connection.recv(RESULT.size, socket.MSG_WAITALL))


def run(
    connect: Connect, request: bytes, stdin: bytes, *, timeout_s: float, output_bytes: int, flood_bytes: int
) -> Outcome:
    """Run a command to its end, or kill all that is inside after `timeout_s` or `flood_bytes`."""
    with connected(connect) as connection, two_pipes(output_bytes) as pipes:
        ends = [pipe.write_end for pipe in pipes]
        if stdin:
            with file_of(stdin) as source:
                ask(connection, request, [*ends, source])
        else:
            ask(connection, request, ends)
        return Wait(connection, pipes, timeout_s, flood_bytes).outcome()


def start(connect: Connect, request: bytes, fds: list[int]) -> socket.socket:
    """Ask for a command on stdout, stderr and maybe stdin; its connection, on which the result will come."""
    try:
        connection = connect()
    except OSError as error:
        raise SandboxLostError(f"the sandbox is gone: {error}") from error
    ask(connection, request, fds)
    return connection


@dataclass(slots=True)
class Pipe:
    """Output of a command: what is read beyond `room` is dropped."""

    read_end: int
    write_end: int
    room: int
    chunks: list[bytes] = field(default_factory=list)
    total: int = 0

    @classmethod
    def open(cls, room: int) -> Pipe:
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        return cls(read_end, write_end, room)

    def read(self) -> int | None:
        """Bytes that were there now; 0 at the end; None for nothing at the moment."""
        try:
            chunk = os.read(self.read_end, _CHUNK)
        except BlockingIOError:
            return None
        if self.total < self.room:
            self.chunks.append(chunk[: self.room - self.total])
        self.total += len(chunk)
        return len(chunk)

    def drain(self) -> None:
        """Read what a command that has ended left in the pipe; what runs on in the background may go on writing."""
        until = self.total + DRAIN_BYTES
        while self.total < until and self.read():
            pass

    def close_write_end(self) -> None:
        os.close(self.write_end)
        self.write_end = -1

    def close(self) -> None:
        for end in (self.read_end, self.write_end):
            if end >= 0:
                os.close(end)


@contextmanager
def two_pipes(room: int) -> Iterator[list[Pipe]]:
    """For stdout and stderr."""
    pipes = [Pipe.open(room) for _ in range(2)]
    try:
        yield pipes
    finally:
        for pipe in pipes:
            pipe.close()


class Wait:
    """One command on its way to its end, from when its side of the pipes was handed over."""

    def __init__(
        self, connection: socket.socket, pipes: list[Pipe], timeout_s: float, flood_bytes: int
    ) -> None:
        for pipe in pipes:
            pipe.close_write_end()
        self._connection = connection
        self._pipes = pipes
        self._deadline = time.monotonic() + timeout_s
        self._flood_bytes = flood_bytes
        self._timed_out = self._flooded = self._killed = False
        self._exec_errno = 0
        self._by_fd = {pipe.read_end: pipe for pipe in pipes}
        self._poll = select.poll()
        for fd in (connection.fileno(), *self._by_fd):
            self._poll.register(fd, select.POLLIN)

    def outcome(self) -> Outcome:
        kind, status, cpu_us, disk_full, _ = self._wait_for_end()
        for pipe in self._pipes:
            pipe.drain()
        stdout, stderr = (b"".join(pipe.chunks) for pipe in self._pipes)
        return Outcome(
            exit_code=os.waitstatus_to_exitcode(status) if kind == EXITED else 126,
            stdout=stdout,
            stderr=stderr,
            timed_out=self._timed_out,
            flooded=self._flooded,
            truncated=any(pipe.total > pipe.room for pipe in self._pipes),
            cpu_s=cpu_us / 1e6,
            disk_full=bool(disk_full),
            unforked=kind == UNFORKED,
            exec_errno=self._exec_errno,
        )

    def _wait_for_end(self) -> tuple[int, int, int, int, int]:
        while True:
            ready = self._poll.poll(max(0.0, self._deadline - time.monotonic()) * 1000)
            if not ready or time.monotonic() > self._deadline:
                self._on_deadline()
            for fd, _ in ready:
                if (pipe := self._by_fd.get(fd)) is not None:
                    self._on_output(pipe)
                elif (result := self._on_result()) is not None:
                    return result

    def _on_deadline(self) -> None:
        if self._killed:
            raise SandboxLostError(
                f"the sandbox did not end a command within {KILL_GRACE_S:g} s of being told to"
            )
        self._timed_out = True
        self._kill()

    def _on_output(self, pipe: Pipe) -> None:
        if pipe.read() == 0:
            self._poll.unregister(pipe.read_end)
        if pipe.total > self._flood_bytes and not self._killed:
            self._flooded = True
            self._kill()

    def _on_result(self) -> tuple[int, int, int, int, int] | None:
        result = self._receive()
        if result[0] != FAILED:
            return result
        self._exec_errno = result[1]
        return None

    def _kill(self) -> None:
        self._killed = True
        self._deadline = time.monotonic() + KILL_GRACE_S
        self._order_kill()

    def _receive(self) -> tuple[int, int, int, int, int]:
        return _result(self._connection.recv(RESULT.size, socket.MSG_WAITALL))

    def _order_kill(self) -> None:
        self._connection.shutdown(socket.SHUT_WR)


def _result(data: bytes) -> tuple[int, int, int, int, int]:
    if len(data) != RESULT.size:
        raise SandboxLostError("the sandbox ended while it was being used")
    return RESULT.unpack(data)


def ask(connection: socket.socket, request: bytes, fds: list[int]) -> None:
    if len(request) > MAX_REQUEST_BYTES:
        raise ValueError(
            f"a command of {len(request)} bytes is too long: write it to a file, or pass it as stdin"
        )
    message = struct.pack("=I", len(request)) + request
    sent = socket.send_fds(connection, [message], fds)
    if sent < len(message):
        connection.sendall(memoryview(message)[sent:])


@contextmanager
def connected(connect: Connect) -> Iterator[socket.socket]:
    """A connection, and one name for all the ways in which a sandbox is gone."""
    try:
        connection = connect()
    except OSError as error:
        raise SandboxLostError(f"the sandbox is gone: {error}") from error
    with closing(connection):
        try:
            yield connection
        except (BrokenPipeError, ConnectionError) as error:
            raise SandboxLostError(f"the sandbox ended while it was being used: {error}") from error


@contextmanager
def file_of(data: bytes) -> Iterator[int]:
    """A descriptor that gives `data`."""
    memory = os.memfd_create("stdin", os.MFD_CLOEXEC)
    with os.fdopen(memory, "wb") as file:
        file.write(data)
        file.flush()
        fd = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
