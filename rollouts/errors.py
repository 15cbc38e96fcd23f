"""Errors of the rollouts package, and the one place in which exceptions become failures.

    RolloutError            something broke at a named boundary of a rollout
    TrainModeError          the engine does not give what training needs (from palestra.harness_proxy)

A bad rollout is data, not a crash: whatever breaks is attributed to one boundary, recorded once on the rollout, and
never cancels its siblings. Cancellation and a full disk are not failures of a rollout; they stop the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from palestra.trajectories.model import Boundary, Failure

RETRYABLE: frozenset[Boundary] = frozenset({"provider", "proxy", "sandbox"})
"""Boundaries at which another attempt may succeed. A world that cannot be made stays so."""


class RolloutError(Exception):
    """Raised inside a rollout when something broke at `boundary`, in `stage`."""

    def __init__(self, boundary: Boundary, stage: str, message: str) -> None:
        super().__init__(f"{boundary} failed in {stage}: {message}")
        self.failure = Failure(boundary, stage, message, retryable=boundary in RETRYABLE)


@contextmanager
def boundary(name: Boundary, stage: str) -> Iterator[None]:
    """Attribute any exception raised inside to `name`, unless an inner boundary did so already."""
    try:
        yield
    except RolloutError:
        raise
    except Exception as error:
        raise RolloutError(name, stage, f"{type(error).__name__}: {error}") from error
