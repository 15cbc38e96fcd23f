"""What grading needs of a sandbox. `palestra.envs.sandbox` has them; so has anything with these methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from palestra.tasks.task import Task

PRIVATE = "/palestra"
"""Directory of the user root inside: what the agent can read and not change."""
BASE = f"{PRIVATE}/base.git"
"""A git repository of the broken tree: one commit, tagged base, with its index."""


class Finished(Protocol):
    """What a command left behind."""

    @property
    def exit_code(self) -> int: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def timed_out(self) -> bool: ...


class Machine(Protocol):
    """One isolated machine with the broken tree of a task at its `workdir`, and BASE."""

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
        """Run a command to its end; a string is a script for `bash -c`."""

    def read(self, path: str, max_bytes: int = ..., *, user: str | None = None) -> bytes:
        """The first `max_bytes` of a regular file."""

    def write(self, path: str, data: bytes, mode: int = 0o644, *, user: str | None = None) -> None:
        """Make or replace a file, with the directories above it."""

    def close(self) -> None:
        """End it and remove all of it."""


FreshMachine = Callable[[Task], Machine]
"""Makes a machine that no agent has touched; whoever asks for it closes it."""


class MachineError(RuntimeError):
    """Raised when a command of ours failed on a machine; says which, and what it said."""


def checked(done: Finished, what: str) -> Finished:
    """`done`, if it went well. Raises MachineError."""
    if done.exit_code != 0 or done.timed_out:
        said = (done.stderr or done.stdout)[-800:].decode("utf-8", "replace").strip()
        why = "it ran out of time" if done.timed_out else f"status {done.exit_code}"
        raise MachineError(f"{what} failed ({why}): {said}")
    return done
