"""Python snippets from an interpreter that is warm: started once per sandbox, forked for every snippet.

    with SnippetRunner(sandbox, imports=["json"]) as python:
        python.run("print(json.dumps({'a': 1}))").stdout      # about 50 times faster than starting python3

The interpreter is the agent's own process inside the sandbox: what it says is worth what any output is worth.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from palestra.envs.sandbox import agent
from palestra.envs.sandbox.base import Finished
from palestra.envs.sandbox.errors import SandboxLostError
from palestra.envs.sandbox.machine import Machine

# Runs inside. A forked waiter reports how its own child, which runs the snippet, ended; the interpreter itself
# never runs any. The answer has the form of native/sandbox.h's struct result.
_INTERPRETER = """
import gc, os, signal, socket, struct, sys, traceback
{imports}

def snippet(code):
    sys.argv[:] = ["-c"]
    space = dict(globals_of_snippets, __name__="__main__")
    try:
        exec(compile(code, "<snippet>", "exec"), space)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        kind, error, trace = sys.exc_info()
        traceback.print_exception(kind, error, trace.tb_next)
        status = 1
    try:
        sys.stdout.flush(); sys.stderr.flush()
    finally:
        os._exit(status & 255)

def wait_for_one(report, source, out, err):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, wanted in ((null, 0), (out, 1), (err, 2)):
            os.dup2(fd, wanted)
        with open(source, "rb") as file:
            code = file.read()
        os.close(report); os.close(out); os.close(err); os.close(null)
        snippet(code)
    os.close(out); os.close(err)
    _, status, used = os.wait4(pid, 0)
    os.write(report, struct.pack("=IiQII", 1, status, int((used.ru_utime + used.ru_stime) * 1e6), 0, 0))
    os._exit(0)

globals_of_snippets = dict(globals())
for name in ("snippet", "wait_for_one"): globals_of_snippets.pop(name)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
gc.freeze()
orders = socket.socket(fileno=os.dup(0))
while True:
    word, fds, _, _ = socket.recv_fds(orders, 1, 4)
    if not word:
        break
    if os.fork() == 0:
        orders.close()
        wait_for_one(*fds)
    for fd in fds:
        os.close(fd)
"""


class SnippetRunner:
    """Runs Python code in one sandbox; starts its interpreter at the first snippet, and again after it was killed."""

    def __init__(self, sandbox: Machine, imports: Sequence[str] = (), *, user: str | None = None) -> None:
        """`imports`: modules that snippets find imported."""
        self._sandbox = sandbox
        self._code = _INTERPRETER.replace("{imports}", "\n".join(f"import {name}" for name in imports))
        self._user = user
        self._lock = threading.Lock()
        self._orders: socket.socket | None = None
        self._command: socket.socket | None = None

    def run(self, code: str, timeout_s: float | None = None) -> Finished:
        """Run `code` as a program of its own. A timeout kills all that is inside the sandbox, as in `exec`."""
        limits = self._sandbox.limits
        began = time.perf_counter()
        ours, theirs = socket.socketpair()
        with ours, agent.two_pipes(limits.output_bytes) as pipes:
            with theirs, agent.stdin_of(code.encode()) as source:
                self._order([theirs.fileno(), source, *(pipe.write_end for pipe in pipes)])
            timeout_s = limits.timeout_s if timeout_s is None else timeout_s
            wait = _SnippetWait(ours, pipes, timeout_s, limits.flood_bytes, self._sandbox.kill)
            return self._sandbox.finished(wait.outcome(), ["python3"], time.perf_counter() - began)

    def close(self) -> None:
        """End the interpreter. Idempotent."""
        with self._lock:
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _order(self, fds: list[int]) -> None:
        with self._lock:
            for _ in range(2):
                if self._orders is None:
                    self._start()
                assert self._orders is not None
                try:
                    socket.send_fds(self._orders, [b"s"], fds)
                    return
                except OSError:
                    self._stop()
        raise SandboxLostError(f"no Python interpreter stays alive in sandbox {self._sandbox.id}")

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs, open(os.devnull, "wb") as null:
            request = self._sandbox.request(["python3", "-c", self._code], user=self._user)
            try:
                self._command = self._sandbox.start(request, [theirs.fileno(), null.fileno(), null.fileno()])
            except BaseException:
                ours.close()
                raise
        self._orders = ours

    def _stop(self) -> None:
        """Hang up on the interpreter and wait for its end: to hang up on the server first would kill all inside."""
        orders, command, self._orders, self._command = self._orders, self._command, None, None
        if orders:
            orders.close()
        if command:
            with command, contextlib.suppress(OSError):
                command.settimeout(agent.KILL_GRACE_S)
                command.recv(agent.RESULT.size)


class _SnippetWait(agent.Wait):
    """A waiter that is killed with everything else says nothing; the snippet was killed too."""

    def __init__(
        self,
        connection: socket.socket,
        pipes: list[agent.Pipe],
        timeout_s: float,
        flood_bytes: int,
        kill: Callable[[], None],
    ) -> None:
        super().__init__(connection, pipes, timeout_s, flood_bytes)
        self._order_kill = kill  # type: ignore[method-assign]

    def _receive(self) -> tuple[int, int, int, int, int]:
        try:
            return super()._receive()
        except (SandboxLostError, ConnectionError):
            return (agent.EXITED, signal.SIGKILL, 0, 0, 0)
