"""Errors of the training package.

TrainingError
  - UnfaithfulError   recorded and recomputed log-probabilities differ (also a ValueError)
  - VersionError      a rollout was sampled with weights that no step may train on
  - DivergedError     a loss or gradient is not finite (also an ArithmeticError)
  - OutOfMemoryError  a micro-batch does not fit, and cannot be made smaller (also a MemoryError)
  - CheckpointError   a checkpoint is incomplete or does not fit this run
  - AllFailedError    no rollout of a step has a reward
  - ConfigError       a setting names what does not exist, or holds an impossible value (also a ValueError)
  - MissingColumnError  a step table lacks a column that an estimator needs (also a ValueError)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from palestra.trajectories.model import Failure


class TrainingError(Exception):
    """Base of what training raises on purpose."""


class UnfaithfulError(TrainingError, ValueError):
    """Raised when the trainer's model does not assign the recorded probabilities to the recorded tokens."""

    def __init__(self, gap: float, allowed: float) -> None:
        super().__init__(
            f"recorded and recomputed log-probabilities differ by up to {gap:.4g} nats, {allowed:g} are allowed: "
            "engine and trainer do not hold the same weights, or the engine reports raw log-probabilities"
        )


class VersionError(TrainingError):
    """Raised when a rollout was sampled with weights that are too old for its step, or that were never published."""

    def __init__(self, rollout_id: str, versions: tuple[int, int], allowed: tuple[int, int]) -> None:
        super().__init__(
            f"{rollout_id} was sampled with version {_span(versions)}, its step takes version {_span(allowed)}: does "
            "another run use the engine? Give each its own, and start this one over (--fresh) or in another run_dir"
        )


def _span(versions: tuple[int, int]) -> str:
    first, last = versions
    return f"{first}" if first == last else f"{first} to {last}"


class DivergedError(TrainingError, ArithmeticError):
    """Raised when a loss or a gradient is not finite; nothing was updated."""


class OutOfMemoryError(TrainingError, MemoryError):
    """Raised when a micro-batch does not fit into memory and no smaller one is possible; the step was not finished."""

    def __init__(self, token_budget: int, said: str) -> None:
        super().__init__(
            f"micro-batches of {token_budget} tokens do not fit into memory ({said}): set train.token_budget lower, or "
            "policy.gradient_checkpointing, or train on more GPUs; the step is then repeated"
        )


class CheckpointError(TrainingError):
    """Raised when a checkpoint is incomplete or does not fit this run."""


class ConfigError(TrainingError, ValueError):
    """Raised when a setting names what does not exist, or holds an impossible value."""


class MissingColumnError(TrainingError, ValueError):
    """Raised when a step table lacks a column that an estimator or a change needs."""

    def __init__(self, name: str, meaning: str, source: str) -> None:
        super().__init__(
            f"column {name!r} is needed and not there: {meaning}. {source}; a table of your own brings it as "
            f"StepTable.from_columns(..., {name}=...)"
        )


class AllFailedError(TrainingError):
    """Raised when no rollout of a step has a reward, so that there is nothing to learn from; nothing was updated."""

    def __init__(self, step: int, failures: Sequence[Failure | None]) -> None:
        causes = Counter((f.boundary, f.stage, f.message) for f in failures if f is not None)
        (boundary, stage, message), count = causes.most_common(1)[0]
        super().__init__(
            f"step {step}: none of {len(failures)} rollouts has a reward; {count} of them failed at {boundary} in "
            f"{stage}: {message}. Mend that and run again: the step is then repeated"
        )
