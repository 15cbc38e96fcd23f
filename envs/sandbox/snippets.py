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

from palestra.envs.sandbox import agent
from palestra.envs.sandbox.base import Finished
from palestra.envs.sandbox.closing import Closing
from palestra.envs.sandbox.errors import SandboxLostError
from palestra.envs.sandbox.machine import Machine

# Runs inside. The interpreter itself never runs a snippet: it forks for each, and tells how the child ended in the
# form of native/sandbox.h's struct result.
_INTERPRETER = """
import gc, os, resource, select, signal, socket, struct, sys, traceback
{imports}

def run(source):
    with open(source) as file:
        code = file.read()
    sys.argv[:] = ["-c"]
    try:
        exec(compile(code, "<snippet>", "exec"), dict(for_snippets, __name__="__main__"))
        return 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException:
        kind, error, trace = sys.exc_info()
        traceback.print_exception(kind, error, trace.tb_next)
    return 1

def child(source, out, err):
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd in (orders.fileno(), woken, waker, *running.values()):
        os.close(fd)
    for fd, wanted in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(fd, wanted)
        os.close(fd)
    status = run(source)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 255)

def begin():
    word, fds, _, _ = socket.recv_fds(orders, 1, 4)
    if not word:
        sys.exit()
    report, *others = fds
    pid = os.fork()
    if pid == 0:
        os.close(report)
        child(*others)
    running[pid] = report
    for fd in others:
        os.close(fd)

def report_ended():
    os.read(woken, 4096)
    while running:
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            break
        cpu_us = int((used.ru_utime + used.ru_stime) * 1e6)
        fd = running.pop(pid)
        try:
            os.write(fd, struct.pack("=IiQII", 1, status, cpu_us, 0, 0))
        except OSError:
            pass
        os.close(fd)

for_snippets = dict(globals())
running = {}
woken, waker = os.pipe()
os.set_blocking(waker, False)
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, lambda *_: None)
signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
orders = socket.socket(fileno=os.dup(0))
exec(compile("pass", "<snippet>", "exec"), {})
gc.freeze()
poll = select.poll()
poll.register(orders, select.POLLIN)
poll.register(woken, select.POLLIN)
while True:
    for fd, _ in poll.poll():
        begin() if fd == orders.fileno() else report_ended()
"""


class SnippetRunner(Closing):
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
            with theirs, agent.file_of(code.encode()) as source:
                self._order([theirs.fileno(), source, *(pipe.write_end for pipe in pipes)])
            timeout_s = limits.timeout_s if timeout_s is None else timeout_s
            wait = _SnippetWait(ours, pipes, timeout_s, limits.flood_bytes, self._sandbox.kill)
            outcome = wait.outcome()
        if outcome.timed_out or outcome.flooded:
            self.close()  # it was killed with everything else
        return self._sandbox.finished(outcome, ["python3"], time.perf_counter() - began)

    def close(self) -> None:
        """End the interpreter. Idempotent."""
        with self._lock:
            self._stop()

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
                self._command = self._sandbox.start(request, [null.fileno(), null.fileno(), theirs.fileno()])
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
