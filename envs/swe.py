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
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvSetupError, EnvStateError
from palestra.envs.machines import Workshop, workshop
from palestra.envs.sandbox.base import Sandbox, Snapshot
from palestra.envs.swe_cheats import cheats_on
from palestra.envs.tools import ToolError, tool
from palestra.envs.workplace import MAX_HITS, Workplace
from palestra.rewards.score import Grader
from palestra.rewards.swe.grader import RepairTests
from palestra.rewards.swe.machine import MachineError
from palestra.rewards.swe.script import ScriptVerdict
from palestra.rewards.swe.worktree import PatchError, take_diff
from palestra.tasks.swe.benchmarks import harbor_solution
from palestra.tasks.swe.repair import Repair, repair_of
from palestra.tasks.task import Task, TaskSet
from palestra.trajectories.model import Score

SUBMIT_WORDS = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""What mini-swe-agent tells its agent to print in order to submit (its configuration mini.yaml)."""
_FENCED = re.compile(r"^```(?:bash|sh|mswea_bash_command)[ \t]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class _Kept:
    """Files and directory of a machine in the middle of an episode."""

    snapshot: Snapshot
    directory: str


class SweEnv(TaskEnv):
    """Repairing a repository. See the module for the tools and the anchor."""

    family: ClassVar[str] = "swe"
    has_machine: ClassVar[bool] = True

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
        self._place: Workplace | None = None
        self._known: str | None = None
        """The anchor, until something may have changed."""
        self._archive: tuple[bytes, str] | None = None
        """Files and directory of an episode that was unpickled and has no machine yet."""

    @tool
    def shell(self, command: str) -> str:
        """Run a command with bash; the directory is kept between calls."""
        output, outcome = self._changing().run(command, self.task.budget.command_s)
        return f"{self._cut(output)}[{outcome}]"

    @tool
    def read(self, path: str, first_line: int = 1, lines: int = 200) -> str:
        """Show the lines of a file with their numbers."""
        text = self._at().read(path).splitlines()
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
            self._changing().make(path, new)
            return f"made {path}"
        text = self._at().read(path)
        if (count := text.count(old)) != 1:
            raise ToolError(f"the text to replace occurs {count} times in {path}; it must occur exactly once")
        self._changing().write(path, text.replace(old, new, 1))
        return f"edited {path}, line {text[: text.index(old)].count(chr(10)) + 1}"

    @tool
    def search(self, pattern: str, path: str = ".") -> str:
        """Find lines that match a regular expression, in all files below a path."""
        hits = self._at().search(pattern, path, self.task.budget.command_s)
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
        return self._at().machine

    def equip(self, sockets: Mapping[int, Path], shared: Mapping[str, Path]) -> tuple[Sandbox, str]:
        """See TaskEnv. The machine takes the place of the one that the episode began with."""
        if self._running().steps:
            raise EnvStateError("the machine is in use: equip it before the first step")
        self.close()
        machine = self._workshop.fresh(self.task, sockets=sockets, shared=shared)
        place = self._settle(machine, self._repair.workdir)
        return place.machine, place.workdir

    def diff(self) -> bytes:
        """What was changed so far, as a git diff. Raises MachineError, PatchError."""
        return take_diff(self.machine, self._repair.workdir)

    def close(self) -> None:
        """End the machine."""
        if self._place is not None:
            self._place.machine.close()
            self._place = None
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
        self._settle(self._workshop.fresh(task), repair_of(task).workdir)
        return task.instruction

    def _anchor(self) -> str:
        if self._known is None:
            self._known = self._at().anchor()
        return self._known

    def _score(self) -> Score:
        if self._repair.suite.runner == "script":
            return ScriptVerdict(self._workshop.fresh)(self.task, self.machine.fork())
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
        kept = _Kept(self.machine.snapshot(), self._at().directory)
        weakref.finalize(kept, _close, kept.snapshot, os.getpid())
        return kept

    def _thaw(self, world: _Kept) -> None:
        self._archive = None
        place = self._at()
        place.machine.restore(world.snapshot)
        place.directory, self._known = world.directory, None

    def _witnessed(self) -> None:
        self._known = None

    @property
    def _repair(self) -> Repair:
        return repair_of(self.task)

    @property
    def _workshop(self) -> Workshop:
        return workshop(self._backend) if isinstance(self._backend, str) else self._backend

    def _settle(self, machine: Sandbox, workdir: str) -> Workplace:
        """Work on this machine; it ends with the environment, if nobody closes it."""
        weakref.finalize(self, _close, machine, os.getpid())
        self._place, self._known = Workplace(machine, workdir), None
        return self._place

    def _at(self) -> Workplace:
        """Where the agent is; after unpickling, on a new machine with the files of the old."""
        if self._place is not None:
            return self._place
        place = self._settle(self._workshop.fresh(self.task), self._repair.workdir)
        if self._archive is not None:
            archive, place.directory = self._archive
            place.unpack(archive)
            self._archive = None
        return place

    def _changing(self) -> Workplace:
        """The same, for a call that may change files."""
        self._known = None
        return self._at()

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
        place = self._place
        archive = (place.pack(), place.directory) if place is not None else self._archive
        return self.__dict__ | {"_place": None, "_archive": archive}


def _close(what: Sandbox | Snapshot, pid: int) -> None:
    """Close it in the process that made it: a forked child has it too, and must leave it alone."""
    if os.getpid() == pid:
        what.close()


def _call(name: str, **arguments: str) -> str:
    return json.dumps({"name": name, "arguments": arguments})
