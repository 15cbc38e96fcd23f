"""What a grader is, and the two scores that are not measurements of the agent.

A grader is a pure function of the task and of what the agent handed in. It returns a `Score`; when it cannot
judge it raises `GraderError`, which becomes a failed rollout without a reward. A failure of ours is never a
zero.
"""

from __future__ import annotations

from typing import Any, Protocol

from palestra.tasks.task import Task
from palestra.trajectories.model import Score


class Grader(Protocol):
    """Judges one outcome. `name` and `version` go on every score: change behaviour, change the version."""

    name: str
    version: str

    def __call__(self, task: Task, submission: Any) -> Score:
        """Score what was handed in; `submission` is None where the agent handed in nothing.

        Raises GraderError when the outcome cannot be judged.
        """
        ...


class GraderError(Exception):
    """Raised when grading itself failed: the gold answer does not run, the evidence is missing."""


def nothing_submitted(grader: Grader) -> Score:
    """The score of an agent that ended or ran out of budget without handing in an answer: a valid 0."""
    return Score(0.0, True, {}, grader.name, grader.version, "nothing was submitted")


def unjudged(grader: Grader, why: str) -> Score:
    """No measurement: the outcome could not be judged."""
    return Score(None, False, {}, grader.name, grader.version, why)
