"""The process that makes and ends namespace sandboxes (native/supervisor.c): one per backend."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterable

from palestra.envs.sandbox.agent import fields
from palestra.envs.sandbox.errors import SandboxError, SandboxLostError, SandboxSetupError
from palestra.envs.sandbox.native import program

_REPLY_BYTES = 1024


class Supervisor:
    """Requests to it, one at a time, from any thread."""

    def __init__(self) -> None:
        """Raises SandboxSetupError where the kernel does not let this user make namespaces."""
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                ["palestra-sandbox", "supervise", str(theirs.fileno())],
                executable=program(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        greeting = self._control.recv(_REPLY_BYTES).decode()
        if greeting != "ok":
            self.close()
            raise SandboxSetupError(
                f"cannot make namespace sandboxes here: {greeting or 'the supervisor ended'}"
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, verb: str, pairs: Iterable[tuple[str, object]], passed: socket.socket | None = None) -> str:
        """What follows "ok" in the answer. Raises SandboxError with its reason, SandboxLostError if it is gone."""
        message = verb.encode() + b"\0" + fields(pairs)
        with self._lock:
            try:
                socket.send_fds(self._control, [message], [passed.fileno()] if passed else [])
                reply = self._control.recv(_REPLY_BYTES).decode(errors="replace")
            except OSError as error:
                raise SandboxLostError(f"the supervisor of the sandboxes is gone: {error}") from error
        status, _, rest = reply.partition(" ")
        if status == "ok":
            return rest
        if not reply:
            raise SandboxLostError("the supervisor of the sandboxes has ended")
        raise SandboxError(f"cannot {verb} a sandbox: {rest}")

    def tell(self, verb: str, pairs: Iterable[tuple[str, object]]) -> None:
        """A request without an answer. Raises SandboxLostError if it is gone."""
        try:
            self._control.send(verb.encode() + b"\0" + fields(pairs))
        except OSError as error:
            raise SandboxLostError(f"the supervisor of the sandboxes is gone: {error}") from error

    def close(self) -> None:
        """End it, and with it all its sandboxes. Idempotent."""
        self._control.close()
        self._process.wait()
