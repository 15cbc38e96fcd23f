"""How alike two patches are: the reward of SWE-RL (Wei et al., arXiv 2502.18449, section 2.2), which runs nothing.

For each file that either patch touches the changes are compared as text by `difflib.SequenceMatcher`, and the ratios
are averaged; a file that only one of them touches counts 0. SWE-RL gives -1 to an answer of the wrong format and 0..1
otherwise; here an answer that is no diff at all is the wrong format.
"""

from __future__ import annotations

import difflib
from typing import Any

from palestra.rewards.score import GraderError, nothing_submitted
from palestra.tasks.errors import TaskError
from palestra.tasks.swe.repair import repair_of
from palestra.tasks.task import Task
from palestra.trajectories.model import Score

WRONG_FORMAT = -1.0


def similarity(patch: str, gold: str) -> float:
    """Likeness of two git diffs from 0 to 1; WRONG_FORMAT where `patch` is none. Raises ValueError for such a gold."""
    wanted = changes(gold)
    if not wanted:
        raise ValueError("the gold patch is no git diff")
    given = changes(patch)
    if not given:
        return WRONG_FORMAT
    ratios = [_likeness(given.get(path, ""), wanted.get(path, "")) for path in sorted({*given, *wanted})]
    return sum(ratios) / len(ratios)


def changes(patch: str) -> dict[str, str]:
    """The hunks of a git diff by path, without what places them (line numbers, hashes, file names)."""
    found: dict[str, list[str]] = {}
    path, inside = "", False
    for line in patch.splitlines():
        if line.startswith("diff --git a/"):
            path, inside = line.removeprefix("diff --git a/").partition(" b/")[0], False
            found[path] = []
        elif line.startswith("@@ ") or line == "GIT binary patch":
            inside = bool(path)
        elif inside or path and line.startswith(("deleted file", "new file", "old mode", "new mode")):
            found[path].append(line)
    return {name: "\n".join(lines) for name, lines in found.items()}


class PatchSimilarity:
    """The grader of SWE-RL: likeness to the known solution. It measures imitation, not repair: a shaping part."""

    name = "swe-rl-similarity"
    version = "1"

    def __call__(self, task: Task, submission: Any) -> Score:
        """Score a git diff, text or bytes. Raises GraderError where the task has no solution."""
        text = submission.decode("utf-8", "surrogateescape") if isinstance(submission, bytes) else submission
        if text is None or not text.strip():
            return nothing_submitted(self)
        try:
            value = similarity(text, repair_of(task).patch)
        except (TaskError, ValueError) as error:
            raise GraderError(f"task {task.id!r}: {error}") from error
        return Score(value, True, {}, self.name, self.version, f"likeness to the known patch: {value:.3f}")


def _likeness(first: str, second: str) -> float:
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio() if first and second else 0.0
