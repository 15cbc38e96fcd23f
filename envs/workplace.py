"""A machine with a work tree, as an agent uses it: a shell that remembers its directory, files by path, and search."""

from __future__ import annotations

import posixpath
import shlex

from palestra.envs.sandbox.base import Finished, Sandbox
from palestra.envs.tools import ToolError
from palestra.tasks.swe.tree import NOISE

MAX_HITS = 100
MAX_TEXT_BYTES = 8 * 2**20
_MAX_ARCHIVE_BYTES = 2**30
_DIRECTORY = "/tmp/.directory"
_ARCHIVE = "/tmp/.archive"


class Workplace:
    """A machine and the directory that the agent is in. Methods raise ToolError for what the agent got wrong."""

    def __init__(self, machine: Sandbox, workdir: str) -> None:
        self.machine, self.workdir = machine, workdir
        self.directory = workdir

    def run(self, command: str, limit_s: float) -> tuple[str, str]:
        """(output, how it ended) of a command; the directory it ends in is where the next one starts."""
        script = f"exec 2>&1\ntrap 'pwd -P > {_DIRECTORY}' EXIT\n{command}"
        done = self.machine.exec(script, cwd=self.directory, timeout_s=limit_s)
        self._follow()
        return text_of(done.stdout), _outcome(done, limit_s)

    def search(self, pattern: str, path: str, limit_s: float) -> list[str]:
        """The first lines that match, as "file:line:text", at most one more than MAX_HITS."""
        find = f"grep -rnIE --exclude-dir=.git -e {shlex.quote(pattern)} -- {shlex.quote(path)}"
        script = f"{find} | LC_ALL=C sort -t: -k1,1 -k2,2n | head -n {MAX_HITS + 1}; exit ${{PIPESTATUS[0]}}"
        done = self.machine.exec(script, cwd=self.directory, timeout_s=limit_s)
        hits = [line[:400] for line in text_of(done.stdout).splitlines()]
        if not hits:
            raise ToolError(text_of(done.stderr).strip() or f"nothing matches {pattern!r} below {path}")
        return hits

    def read(self, path: str) -> str:
        """A text file."""
        try:
            data = self.machine.read(self._path(path), MAX_TEXT_BYTES + 1)
        except (OSError, ValueError) as error:
            raise ToolError(f"cannot read {path}: {_reason(error)}") from None
        if len(data) > MAX_TEXT_BYTES:
            raise ToolError(f"{path} is larger than {MAX_TEXT_BYTES >> 20} MiB: use the shell")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ToolError(f"{path} is not UTF-8 text: use the shell") from None

    def make(self, path: str, text: str) -> None:
        """A new file."""
        if self.machine.exec(["test", "-e", self._path(path)]).exit_code == 0:
            raise ToolError(f"{path} exists: give the text to replace")
        self.write(path, text)

    def write(self, path: str, text: str) -> None:
        """Make or replace a file; one that was executable stays so."""
        target = self._path(path)
        stat = self.machine.exec(["stat", "-L", "-c", "%a", target])
        mode = int(stat.stdout, 8) if stat.exit_code == 0 else 0o644
        try:
            self.machine.write(target, text.encode("utf-8", "surrogatepass"), mode)
        except (OSError, ValueError) as error:
            raise ToolError(f"cannot write {path}: {_reason(error)}") from None

    def anchor(self) -> str:
        """Digest of the work tree, caches and .git apart, and the directory relative to it."""
        try:
            tree = self.machine.digest(self.workdir, NOISE)[:32]
        except OSError as error:
            tree = f"no work tree, {type(error).__name__}"
        return f"{tree}:{posixpath.relpath(self.directory, self.workdir)}"

    def pack(self) -> bytes:
        """The files of the work tree as a tar archive."""
        self.machine.exec(f"tar -cf {_ARCHIVE} --exclude=.git -C {shlex.quote(self.workdir)} .")
        return self.machine.read(_ARCHIVE, _MAX_ARCHIVE_BYTES)

    def unpack(self, archive: bytes) -> None:
        """Replace the files of the work tree by those of an archive."""
        self.machine.write(_ARCHIVE, archive)
        empty = "find . -mindepth 1 -maxdepth 1 ! -name .git -exec rm -rf {} +"
        self.machine.exec(f"{empty}; tar -xf {_ARCHIVE}; rm {_ARCHIVE}", cwd=self.workdir)

    def _follow(self) -> None:
        """Go where the shell went, if that is a directory still."""
        try:
            wanted = text_of(self.machine.read(_DIRECTORY, 4096)).strip()
        except OSError:
            wanted = ""
        there = wanted.startswith("/") and self.machine.exec(["test", "-d", wanted]).exit_code == 0
        self.directory = wanted if there else self.workdir

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.directory, path))


def text_of(data: bytes) -> str:
    """Output as text that ends in a line end, or is empty."""
    text = data.decode("utf-8", "replace")
    return text if not text or text.endswith("\n") else text + "\n"


def _outcome(done: Finished, limit_s: float) -> str:
    """How a command ended, for the agent."""
    if done.timed_out:
        return f"it took more than {limit_s:g} s and was killed, with all that ran"
    notes = [f"exit code {done.exit_code}"]
    if done.breach is not None:
        notes.append(f"it ran into the limit on {done.breach}")
    if done.truncated:
        notes.append("output was dropped")
    return ", ".join(notes)


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
