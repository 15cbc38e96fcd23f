"""Errors of the evaluation package.

EvaluationError
  - NoScoresError           not one rollout has a valid score to estimate from (also a ValueError)
  - TooFewAttemptsError     pass@k was asked of a task with fewer than k scored rollouts (also a ValueError)
  - DuplicateRolloutError   the same rollout was given twice and would count twice (also a ValueError)
  - NotComparableError      runs share no task, or a task's content differs (also a ValueError)
  - ReportError             what a report was given does not fit together (also a ValueError)
"""


class EvaluationError(Exception):
    """Base of everything raised by palestra.evaluation on purpose."""


class NoScoresError(EvaluationError, ValueError):
    """Raised when there is no scored rollout to estimate from."""


class TooFewAttemptsError(EvaluationError, ValueError):
    """Raised when a task has fewer scored rollouts than pass@k needs."""


class DuplicateRolloutError(EvaluationError, ValueError):
    """Raised when one rollout is given twice."""


class NotComparableError(EvaluationError, ValueError):
    """Raised when rewards were earned on different tasks."""


class ReportError(EvaluationError, ValueError):
    """Raised when the parts of a report do not fit together."""
