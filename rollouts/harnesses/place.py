"""Where a command-line harness runs: a fresh home and a directory to work in, and no network but the proxy.

    async with scratch_place(Wire(unix_socket, url)) as place:
        await place.write({"home/.config/x.toml": "..."})
        ended = await place.run(["codex", "exec", "..."], env={"HOME": place.path("home")}, timeout_s=600)

`Place` is what a harness needs of it; a sandbox is one too (`machine_place.py`). `ScratchPlace` is a temporary
directory on this machine. Isolated (the default) its commands run in user, network, pid and mount namespaces: the
proxy answers at a loopback address, and so do the sockets of `Wire.relays`; nothing else answers at all, the machine's
files are read-only outside of the place, and nothing that was started survives the command. They can still be read:
what must stay secret from the agent does not belong on the machine, or the harness belongs into a sandbox.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol

from palestra.rollouts.errors import PlaceError
from palestra.rollouts.harnesses import inside

OUTPUT_BYTES = 1 << 20
"""Kept of each output stream: its end."""
PORT = 8650
"""At which the proxy answers inside an isolated place; each has its own loopback device."""
_INSIDE = Path(inside.__file__)
_UNSHARE = ("--net", "--pid", "--mount", "--fork", "--kill-child=KILL")
_WAYS = (("--user", "--map-root-user", "--mount-proc"), ("--user", "--map-root-user"), ("--mount-proc",), ())
"""As an unprivileged user with the rights of nobody outside; without a /proc of its own; as root."""
_LEFTOVER_S = 1.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `exit_code` is None where it was stopped, negative after a signal."""

    exit_code: int | None
    stdout: str = ""
    stderr: str = ""

    @property
    def tail(self) -> str:
        """The last words, for an error message."""
        words = self.stderr.strip() or self.stdout.strip()
        return words[-500:] or "it said nothing"


@dataclass(frozen=True, slots=True)
class Wire:
    """The proxy as it is reached from outside of the place."""

    url: str
    """http://host:port"""
    unix_socket: Path | None = None
    relays: Mapping[int, Path] = field(default_factory=dict)
    """Other unix sockets that answer inside an isolated place, each at a loopback port of its own."""


class Place(Protocol):
    """A directory tree with home/ and work/, in which commands run."""

    proxy_url: str
    """http://host:port of the proxy, as commands see it."""
    search_path: str
    """PATH of commands, but for the place's own bin/."""

    def path(self, name: str) -> str:
        """Absolute path, as commands see it, of `name` in the place: "home", "work/notes.txt"."""
        ...

    def program(self, installed: str) -> str:
        """Where the harness is, as commands see it, that is at `installed` on this machine."""
        ...

    async def write(self, files: Mapping[str, str]) -> None:
        """Write texts by name; directories are made. What is in bin/ can be executed."""
        ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout_s: float,
        stop: asyncio.Event | None = None,
    ) -> Ended:
        """Run in work/ with no input, until it ends, `timeout_s` passed or `stop` is set.

        `env` is the whole environment. Whatever the command started has ended when this returns or raises.
        Raises PlaceError where no command can be run.
        """
        ...


class ScratchPlace:
    """A `Place` in `root`, which must exist. `work` is another directory to work in."""

    def __init__(self, root: Path, wire: Wire, *, isolated: bool = True, work: Path | None = None) -> None:
        if isolated and wire.unix_socket is None:
            raise PlaceError("an isolated place reaches the proxy by a unix socket, and there is none")
        self._root, self._wire, self._isolated = root.resolve(), wire, isolated
        self._work = (work or root / "work").resolve()
        self.proxy_url = f"http://127.0.0.1:{PORT}" if isolated else wire.url
        self.search_path = os.environ.get("PATH", os.defpath)
        for directory in ("home", "work", "tmp", "bin"):
            (root / directory).mkdir(exist_ok=True)

    def path(self, name: str) -> str:
        """See Place."""
        first, _, rest = name.partition("/")
        return str((self._work if first == "work" else self._root / first) / rest).rstrip("/")

    def program(self, installed: str) -> str:
        """See Place: the machine's files are there."""
        return installed

    async def write(self, files: Mapping[str, str]) -> None:
        """See Place."""
        for name, text in files.items():
            path = Path(self.path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if name.startswith("bin/"):
                path.chmod(0o755)

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout_s: float,
        stop: asyncio.Event | None = None,
    ) -> Ended:
        """See Place."""
        command = self._wrapped(argv) if self._isolated else list(argv)
        process = await self._start(command, env)
        assert process.stdout is not None and process.stderr is not None
        tails = _Tail(process.stdout), _Tail(process.stderr)
        try:
            finished = await first(_exit_of(process.pid), stop, timeout_s)
        finally:
            await _end(process, tails)
        code = process.returncode if finished else None
        ended = Ended(code, *(tail.text() for tail in tails))
        if self._isolated and code == inside.REFUSED:
            raise PlaceError(f"the namespaces of this place broke: {ended.tail}")
        return ended

    async def _start(self, command: list[str], env: Mapping[str, str]) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        try:
            return await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=dict(env),
                cwd=self._work, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise PlaceError(f"cannot run {command[0]}: {error.strerror or error}") from error

    def _wrapped(self, argv: Sequence[str]) -> list[str]:
        sockets = {PORT: self._wire.unix_socket, **self._wire.relays}
        plan = {
            "relays": {port: str(path) for port, path in sockets.items()},
            "writable": [str(self._root), str(self._work)],
            "argv": list(argv),
        }
        return [*namespaces(), sys.executable, "-I", "-S", str(_INSIDE), json.dumps(plan)]


@asynccontextmanager
async def scratch_place(
    wire: Wire, *, isolated: bool = True, work: Path | None = None
) -> AsyncIterator[ScratchPlace]:
    """A ScratchPlace in a new directory, which is removed afterwards. Raises PlaceError."""
    if isolated:
        await asyncio.to_thread(namespaces)
    root = Path(tempfile.mkdtemp(prefix="palestra-place-"))
    try:
        yield ScratchPlace(root, wire, isolated=isolated, work=work)
    finally:
        await asyncio.to_thread(shutil.rmtree, root, ignore_errors=True)


@cache
def namespaces() -> tuple[str, ...]:
    """The beginning of a command line that runs the rest in fresh namespaces.

    Tried once per process. Raises PlaceError where this machine allows none.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        raise PlaceError("unshare is not there: install util-linux, or run without isolation")
    said = ""
    plan = json.dumps({"relays": {}, "writable": [], "argv": ["true"]})
    for way in _WAYS if os.geteuid() == 0 else _WAYS[:2]:
        command = (unshare, *_UNSHARE, *way)
        tried = [*command, sys.executable, "-I", "-S", str(_INSIDE), plan]
        done = subprocess.run(tried, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode == 0:
            return command
        said = said or done.stderr.strip()
    raise PlaceError(
        f"this machine does not let this user make namespaces ({said}): allow user namespaces "
        "(sysctl kernel.unprivileged_userns_clone=1, or run the container with --privileged), or run without "
        "isolation (--no-isolation), with the network open to the harness"
    )


class _Tail:
    """Reads a stream to its end, so that the writer never waits, and keeps the end of it."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._kept = bytearray()
        self.task = asyncio.create_task(self._read(stream))

    def text(self) -> str:
        return self._kept[-OUTPUT_BYTES:].decode("utf-8", "replace")

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(1 << 16):
            self._kept += chunk
            if len(self._kept) > 2 * OUTPUT_BYTES:
                del self._kept[:-OUTPUT_BYTES]


async def _exit_of(pid: int) -> None:
    """Wait until a child has ended, even where others hold its pipes open, which asyncio's own wait() waits for."""
    loop = asyncio.get_running_loop()
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:  # it was waited for already
        return
    ended = asyncio.Event()
    loop.add_reader(watched, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(watched)
        os.close(watched)


async def first(done: Awaitable[object], stop: asyncio.Event | None, timeout_s: float) -> bool:
    """Whether `done` came before `stop` and the time limit."""
    tasks = [asyncio.ensure_future(done), *([asyncio.ensure_future(stop.wait())] if stop else [])]
    try:
        ready, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0] in ready
    finally:
        for task in tasks:
            task.cancel()


async def _end(process: asyncio.subprocess.Process, tails: Sequence[_Tail]) -> None:
    """Kill what is left of the process group, and read what was written."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    _, open_still = await asyncio.wait([t.task for t in tails], timeout=_LEFTOVER_S)
    for task in open_still:  # somebody who left the group holds the pipe
        task.cancel()
