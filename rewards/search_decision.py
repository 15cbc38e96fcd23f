"""AdaSearch (Lin et al. 2025, arXiv:2512.16883): whether to search is decided in the open, and scored.

Before anything else the agent says whether it has to search. The right decision is the policy's own: a question that it
answers without searching in at least half of its tries (`data["solve_rate"]`, measured with the closed-book pass rate)
needs no search. The value is the answer's where the decision was right, and 0 where it was wrong, so neither always
searching nor never searching pays. `f1_aware` is the paper's measure of how well a policy knows what it knows.

experimental: after the abstract and reviews of the paper; its code (github.com/hank0316/AdaSearch) is not public yet.
That half of the tries is enough, and that a wrong decision costs the whole answer, is assumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from palestra.rewards.score import Grader, GraderError, nothing_submitted
from palestra.rewards.search import Searched, SearchGrader
from palestra.tasks.task import Task
from palestra.trajectories.model import Score

THRESHOLD = 0.5


class DecisionGrader:
    """The answer's score, gated by the decision; `parts["decision"]` is 1.0 where it was right."""

    name = "search-decision"
    version = "1"

    def __init__(self, answer: Grader | None = None, threshold: float = THRESHOLD) -> None:
        """`answer` grades the answer (default: SearchGrader); `threshold` is the solve rate that counts as knowing."""
        self._answer, self._threshold = answer or SearchGrader(), threshold

    def __call__(self, task: Task, submission: Any) -> Score:
        """Score a `Searched`. Raises GraderError for a task without a solve rate."""
        assert isinstance(submission, Searched)
        if submission.answer is None or submission.wants_search is None:
            return nothing_submitted(self)
        right = submission.wants_search == needs_search(task, self._threshold)
        score = self._answer(task, submission)
        value = score.value if right else 0.0
        parts = {**score.parts, "decision": float(right), "decided_to_search": float(submission.wants_search)}
        told = f"the decision to {'search' if submission.wants_search else 'answer at once'} was "
        told += "right; " if right else "wrong; "
        return replace(
            score,
            value=value,
            parts=parts,
            grader=self.name,
            grader_version=self.version,
            evidence=told + score.evidence,
        )


def needs_search(task: Task, threshold: float = THRESHOLD) -> bool:
    """Whether the policy's own knowledge is not enough. Raises GraderError for a task without a solve rate."""
    rate = task.data.get("solve_rate")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise GraderError(f"task {task.id!r}: data['solve_rate'] must be from 0 to 1, got {rate!r}")
    return rate < threshold


def f1_aware(answered_at_once: Sequence[bool], knows: Sequence[bool]) -> float:
    """F1 of the decision to answer without searching, against whether that would do; 0.0 where it never is right.

    Both have one entry per question. Raises ValueError for different lengths.
    """
    pairs = list(zip(answered_at_once, knows, strict=True))
    hits = sum(a and b for a, b in pairs)
    claimed, true = sum(a for a, _ in pairs), sum(b for _, b in pairs)
    return 2 * hits / (claimed + true) if hits else 0.0
