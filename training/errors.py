"""Errors of the training package.

TrainingError
  - UnfaithfulError   recorded and recomputed log-probabilities differ (also a ValueError)
  - DivergedError     a loss or gradient is not finite (also an ArithmeticError)
  - CheckpointError   a checkpoint is incomplete or does not fit this run
"""


class TrainingError(Exception):
    """Base of what training raises on purpose."""


class UnfaithfulError(TrainingError, ValueError):
    """Raised when the trainer's model does not assign the recorded probabilities to the recorded tokens."""

    def __init__(self, gap: float, allowed: float) -> None:
        super().__init__(
            f"recorded and recomputed log-probabilities differ by up to {gap:.4g} nats, {allowed:g} are allowed: "
            "engine and trainer do not hold the same weights, or the engine reports raw log-probabilities"
        )


class DivergedError(TrainingError, ArithmeticError):
    """Raised when a loss or a gradient is not finite; nothing was updated."""


class CheckpointError(TrainingError):
    """Raised when a checkpoint is incomplete or does not fit this run."""
