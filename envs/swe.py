"""palestra/Swe-v0: repair a repository by looking around in it, changing it, and handing in what was changed.

Every episode has a machine of its own with the broken tree. The agent has a shell whose directory it keeps from call
to call, and tools to read, edit and search files; submitting hands in the diff of the work tree, which is graded on
another machine (`palestra.rewards.swe.grader`). The anchor is a digest of the work tree, without caches and `.git`,
and of the directory the shell is in: the same files by another way are the same decision point.
"""

from __future__ import annotations

import base64
import json
import os
import posixpath
import re
import shlex
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvSetupError
from palestra.envs.machines import Workshop, workshop
from palestra.envs.sandbox.base import Finished, Sandbox, Snapshot
from palestra.envs.swe_cheats import cheats_on
from palestra.envs.tools import ToolError, tool
from palestra.rewards.score import Grader
from palestra.rewards.swe.grader import RepairTests
from palestra.rewards.swe.machine import MachineError
from palestra.rewards.swe.script import ScriptVerdict
from palestra.rewards.swe.worktree import PatchError, take_diff
from palestra.tasks.swe.benchmarks import harbor_solution
from palestra.tasks.swe.repair import Repair, repair_of
from palestra.tasks.swe.tree import NOISE
from palestra.tasks.task import Task, TaskSet
from palestra.trajectories.model import Score

MAX_HITS = 100
MAX_EDIT_BYTES = 8 * 2**20
SUBMIT_WORDS = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What mini-swe-agent tells its agent to print in order to submit (its configuration mini.yaml)."""
_FENCED = re.compile(r"^```(?:bash|sh|mswea_bash_command)[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_DIRECTORY = "/tmp/.directory"


@dataclass(frozen=True)
class _Kept:
    """Files and directory of a machine in the middle of an episode."""

    snapshot: Snapshot
    directory: str


class SweEnv(TaskEnv):
    """Repairing a repository. See the module for the tools and the anchor."""

    family: ClassVar[str] = "swe"

    def __init__(
        self,
        tasks: TaskSet | str | None = None,
        backend: str | Workshop = "namespace",
        grader: Grader | None = None,
        max_chars: int = 10_000,
    ) -> None:
        """`backend`: namespace, docker, or a workshop; `max_chars` bounds an observation."""
        super().__init__(tasks)
        self._backend, self._grader, self._max_chars = backend, grader, max_chars
        self._machine: Sandbox | None = None
        self._directory = ""
        self._digest: str | None = None
        self._archive: bytes | None = None

    @tool
    def shell(self, command: str) -> str:
        """Run a command with bash; the directory is kept between calls."""
        script = f"exec 2>&1\ntrap 'pwd -P > {_DIRECTORY}' EXIT\n{command}"
        limit_s = self.task.budget.command_s
        done = self._changed().exec(script, cwd=self._directory, timeout_s=limit_s)
        self._follow()
        return f"{self._cut(_text(done.stdout))}[{_outcome(done, limit_s)}]"

    @tool
    def read(self, path: str, first_line: int = 1, lines: int = 200) -> str:
        """Show the lines of a file with their numbers."""
        text = self._read(path).splitlines()
        start = max(first_line, 1)
        shown = text[start - 1 : start - 1 + max(lines, 1)]
        if not shown:
            return f"(the file has {len(text)} lines)"
        numbered = "\n".join(f"{n:6} {line}" for n, line in enumerate(shown, start))
        rest = len(text) - (start - 1 + len(shown))
        return self._cut(numbered) + (f"\n[{rest} more lines]" if rest > 0 else "")

    @tool
    def edit(self, path: str, old: str, new: str) -> str:
        """Replace text that occurs once in a file; old="" makes a new file."""
        if not old:
            return self._make_file(path, new)
        text = self._read(path)
        if (count := text.count(old)) != 1:
            raise ToolError(f"the text to replace occurs {count} times in {path}; it must occur exactly once")
        self._write(path, text.replace(old, new, 1))
        return f"edited {path}, line {text[: text.index(old)].count(chr(10)) + 1}"

    @tool
    def search(self, pattern: str, path: str = ".") -> str:
        """Find lines that match a regular expression, in all files below a path."""
        find = f"grep -rnIE --exclude-dir=.git -e {shlex.quote(pattern)} -- {shlex.quote(path)}"
        done = self._running_machine().exec(
            f"{find} | LC_ALL=C sort -t: -k1,1 -k2,2n | head -n {MAX_HITS + 1}; exit ${{PIPESTATUS[0]}}",
            cwd=self._directory,
            timeout_s=self.task.budget.command_s,
        )
        hits = [line[:400] for line in _text(done.stdout).splitlines()]
        if not hits:
            raise ToolError(_text(done.stderr).strip() or f"nothing matches {pattern!r} below {path}")
        more = "\n[more lines match]" if len(hits) > MAX_HITS else ""
        return self._cut("\n".join(hits[:MAX_HITS])) + more

    @tool
    def submit(self, summary: str) -> str:
        """Hand in the work tree as it is, with a word on what was changed."""
        self.finish()
        return "submitted"

    @property
    def machine(self) -> Sandbox:
        """The machine of the episode, for programs that act on it themselves (see `witness`)."""
        return self._running_machine()

    def diff(self) -> bytes:
        """What was changed so far, as a git diff. Raises MachineError, PatchError."""
        return take_diff(self._running_machine(), self._repair.workdir)

    def close(self) -> None:
        """End the machine."""
        if self._machine is not None:
            self._machine.close()
            self._machine = None
        self._archive = None

    def solution(self) -> Sequence[str]:
        """Applying the known patch and submitting; nothing where the task has none."""
        if self._repair.kind == "harbor":
            script = harbor_solution(self._repair.extra)
            return (_call("shell", command=script), _call("submit", summary="done")) if script else ()
        if not self._repair.patch:
            return ()
        packed = base64.b64encode(self._repair.patch.encode("utf-8", "surrogateescape")).decode()
        apply = f"base64 -d <<< {packed} | git apply --whitespace=nowarn"
        return _call("shell", command=apply), _call("submit", summary="done")

    def cheats(self) -> Mapping[str, Sequence[str]]:
        """Ways to a score without a repair: tests and their configuration changed, the run cut short or lied to."""
        scripts = cheats_on(self._repair)
        return {
            name: (_call("shell", command=script), _call("submit", summary="done"))
            for name, script in scripts.items()
        }

    def _on_text(self, text: str) -> str:
        """One command in a fenced block, for agents without tools; the words of mini-swe-agent submit."""
        blocks = _FENCED.findall(text)
        if len(blocks) != 1:
            raise ToolError(
                f"answer with a tool call, or with one command in a ```bash block; found {len(blocks)}"
            )
        said = self.shell(blocks[0].strip())
        if said.startswith(SUBMIT_WORDS):
            self.finish()
        return said

    def _begin(self, task: Task) -> str:
        self.close()
        self._own(self._workshop.fresh(task))
        self._directory = repair_of(task).workdir
        self._digest = None
        return task.instruction

    def _anchor(self) -> str:
        if self._digest is None:
            self._digest = (
                f"{self._tree_digest()[:32]}:{posixpath.relpath(self._directory, self._repair.workdir)}"
            )
        return self._digest

    def _tree_digest(self) -> str:
        try:
            return self._running_machine().digest(self._repair.workdir, NOISE)
        except OSError as error:
            return f"no work tree, {type(error).__name__}"

    def _score(self) -> Score:
        if self._repair.suite.runner == "script":
            return ScriptVerdict(self._workshop.fresh)(self.task, self._running_machine().fork())
        grader = self._grader or RepairTests(self._workshop.fresh)
        try:
            patch = self.diff()
        except (MachineError, PatchError, OSError) as error:
            return self._undiffed(grader, error)
        return grader(self.task, patch)

    def _undiffed(self, grader: Grader, error: Exception) -> Score:
        """The diff cannot be taken: what works on a fresh machine and not here was broken by the agent."""
        with self._workshop.fresh(self.task) as control:
            take_diff(control, self._repair.workdir)
        why = f"the work tree cannot be read any more: {error}"
        return Score(0.0, True, {}, grader.name, grader.version, why)

    def _freeze(self) -> _Kept:
        kept = _Kept(self._running_machine().snapshot(), self._directory)
        weakref.finalize(kept, _close, kept.snapshot, os.getpid())
        return kept

    def _thaw(self, world: _Kept) -> None:
        machine = self._machine or self._own(self._workshop.fresh(self.task))
        machine.restore(world.snapshot)
        self._directory, self._digest = world.directory, None

    @property
    def _repair(self) -> Repair:
        return repair_of(self.task)

    @property
    def _workshop(self) -> Workshop:
        return workshop(self._backend) if isinstance(self._backend, str) else self._backend

    def _running_machine(self) -> Sandbox:
        """The machine of the episode; after unpickling, a new one with the files of the old."""
        if self._machine is None:
            machine = self._own(self._workshop.fresh(self.task))
            if self._archive is not None:
                _unpack(machine, self._archive, self._repair.workdir)
                self._archive = None
            return machine
        return self._machine

    def _own(self, machine: Sandbox) -> Sandbox:
        """Make a machine that of the episode; it ends with the environment, if nobody closes it."""
        self._machine = machine
        weakref.finalize(self, _close, machine, os.getpid())
        return machine

    def _changed(self) -> Sandbox:
        """The machine, for a call that may change its files."""
        self._digest = None
        return self._running_machine()

    def _witnessed(self) -> None:
        self._digest = None

    def _follow(self) -> None:
        """Go where the shell went, if that is a directory still."""
        machine = self._running_machine()
        try:
            wanted = _text(machine.read(_DIRECTORY, 4096)).strip()
        except OSError:
            wanted = self._repair.workdir
        there = machine.exec(["test", "-d", wanted]).exit_code == 0
        self._directory = wanted if wanted.startswith("/") and there else self._repair.workdir

    def _path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._directory, path))

    def _read(self, path: str) -> str:
        try:
            data = self._running_machine().read(self._path(path), MAX_EDIT_BYTES + 1)
        except (OSError, ValueError) as error:
            raise ToolError(f"cannot read {path}: {_reason(error)}") from None
        if len(data) > MAX_EDIT_BYTES:
            raise ToolError(f"{path} is larger than {MAX_EDIT_BYTES >> 20} MiB: use the shell")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ToolError(f"{path} is not UTF-8 text: use the shell") from None

    def _make_file(self, path: str, text: str) -> str:
        if self._running_machine().exec(["test", "-e", self._path(path)]).exit_code == 0:
            raise ToolError(f"{path} exists: give the text to replace")
        self._write(path, text)
        return f"made {path}"

    def _write(self, path: str, text: str) -> None:
        target = self._path(path)
        stat = self._running_machine().exec(["stat", "-L", "-c", "%a", target])
        mode = int(stat.stdout, 8) if stat.exit_code == 0 else 0o644
        try:
            self._changed().write(target, text.encode("utf-8", "surrogatepass"), mode)
        except (OSError, ValueError) as error:
            raise ToolError(f"cannot write {path}: {_reason(error)}") from None

    def _cut(self, text: str) -> str:
        """The beginning and the end of a long text."""
        if len(text) <= self._max_chars:
            return text
        head = self._max_chars // 2
        left_out = len(text) - 2 * head
        return f"{text[:head]}\n[... {left_out} characters left out ...]\n{text[-head:]}"

    def __getstate__(self) -> Mapping[str, Any]:
        if isinstance(self._backend, Workshop):
            raise EnvSetupError("an environment with a workshop of its own cannot be pickled; name a backend")
        archive = self._archive
        if self._machine is not None:
            archive = _packed(self._machine, self._repair.workdir)
        return self.__dict__ | {"_machine": None, "_archive": archive, "_grader": self._grader}


def _close(what: Sandbox | Snapshot, pid: int) -> None:
    """Close it in the process that made it: a forked child has it too, and must leave it alone."""
    if os.getpid() == pid:
        what.close()


def _packed(machine: Sandbox, workdir: str) -> bytes:
    """The files of the work tree as a tar archive."""
    machine.exec(f"tar -cf /tmp/.archive --exclude=.git -C {shlex.quote(workdir)} .")
    return machine.read("/tmp/.archive", max_bytes=2**30)


def _unpack(machine: Sandbox, archive: bytes, workdir: str) -> None:
    machine.write("/tmp/.archive", archive)
    empty = "find . -mindepth 1 -maxdepth 1 ! -name .git -exec rm -rf {} +"
    machine.exec(f"{empty}; tar -xf /tmp/.archive; rm /tmp/.archive", cwd=workdir)


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


def _text(data: bytes) -> str:
    """Output as text that ends in a line end, or is empty."""
    text = data.decode("utf-8", "replace")
    return text if not text or text.endswith("\n") else text + "\n"


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def _call(name: str, **arguments: str) -> str:
    return json.dumps({"name": name, "arguments": arguments})
