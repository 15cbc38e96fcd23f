"""A sandbox of the world as the place of a harness: the program runs inside, on the files that it is to change.

Inside, `http://127.0.0.1:8650` is the proxy, over a unix socket of the host; there is no other way out. The program
itself is shared with the sandbox, read-only. Its home is the sandbox's, its directory to work in the work tree.
"""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from palestra.envs.sandbox.base import Sandbox
from palestra.envs.sandbox.errors import SandboxError
from palestra.envs.sandbox.machine import USERS
from palestra.rollouts.errors import PlaceError
from palestra.rollouts.harnesses.place import PORT, Ended, first
from palestra.rollouts.harnesses.recipes.install import Inside

T = TypeVar("T")


class MachinePlace:
    """A `Place` on `machine`, which was made with a socket at PORT and with what `inside` shares.

    `work` is the directory to work in. Close it: it has threads of its own, since a command blocks one of them
    for as long as it runs.
    """

    proxy_url = f"http://127.0.0.1:{PORT}"

    def __init__(self, machine: Sandbox, work: str, inside: Inside) -> None:
        self._machine, self._inside = machine, inside
        home = USERS[machine.image.user][2]
        self._roots = {"home": home, "work": work, "tmp": "/tmp", "bin": f"{home}/.local/bin"}
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="machine-place")
        self.search_path = machine.image.env.get("PATH", os.defpath)

    def close(self) -> None:
        """End the threads; the machine stays."""
        self._threads.shutdown(wait=False)

    def path(self, name: str) -> str:
        """See Place."""
        root, _, rest = name.partition("/")
        return posixpath.join(self._roots[root], rest).rstrip("/")

    def program(self, installed: str) -> str:
        """See Place."""
        inside = self._inside
        return inside.program if inside.script is None else self.path(f"bin/{inside.program}")

    async def write(self, files: Mapping[str, str]) -> None:
        """See Place. Raises PlaceError."""
        for name, text in files.items():
            mode = 0o755 if name.startswith("bin/") else 0o644
            await self._call(partial(self._machine.write, self.path(name), text.encode(), mode))

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout_s: float,
        stop: asyncio.Event | None = None,
    ) -> Ended:
        """See Place. `env` is added to the image's."""
        if self._inside.script is not None:
            await self.write({f"bin/{self._inside.program}": self._inside.script})
        command = partial(self._machine.exec, argv, cwd=self.path("work"), env=env, timeout_s=timeout_s)
        running = asyncio.ensure_future(self._call(command))
        try:
            finished = await first(asyncio.shield(running), stop, timeout_s)
        finally:
            await asyncio.shield(self._end(running))
        done = running.result()
        code = done.exit_code if finished and not done.timed_out else None
        return Ended(code, *(output.decode("utf-8", "replace") for output in (done.stdout, done.stderr)))

    async def _end(self, running: asyncio.Future[Any]) -> None:
        """Whatever the command left running ends too."""
        await self._call(self._machine.kill)
        await asyncio.wait([running])

    async def _call(self, function: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        except (SandboxError, OSError) as error:
            raise PlaceError(f"the sandbox let the harness down: {error}") from error
