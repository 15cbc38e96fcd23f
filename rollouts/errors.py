"""Errors of the rollouts package, and the one place in which exceptions become failures.

    RolloutError   something broke at a named boundary of a rollout
    ResumeError    the store holds a rollout of this name that was played differently (also a ValueError)
    RecipeError    a recipe that does not exist, or asked to do what it cannot (also a ValueError)
      - NotInstalledError   the harness is not on this machine; says what to type
    PlaceError     no command can be run there, or not in isolation (also an OSError)

A bad rollout is data, not a crash: whatever breaks is attributed to one boundary, recorded once on the
rollout, and never cancels its siblings. Cancellation and a full disk are not failures of a rollout; they stop
the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from palestra.trajectories.model import Boundary, Failure

RETRYABLE: frozenset[Boundary] = frozenset({"provider", "proxy", "sandbox"})
"""Boundaries at which another attempt may succeed. A world that cannot be made stays so."""


class RolloutError(Exception):
    """Raised inside a rollout when something broke at `boundary`, in `stage`."""

    def __init__(self, boundary: Boundary, stage: str, message: str, *, final: bool = False) -> None:
        """`final`: another attempt would meet the same, whatever the boundary."""
        super().__init__(f"{boundary} failed in {stage}: {message}")
        retryable = boundary in RETRYABLE and not final
        self.failure = Failure(boundary, stage, message, retryable)


class ResumeError(ValueError):
    """Raised when a run would take a stored rollout for its own that was played differently."""


class RecipeError(ValueError):
    """Raised for an unknown recipe, and for what a recipe cannot do."""


class NotInstalledError(RecipeError):
    """Raised when a harness is not on this machine."""


class PlaceError(OSError):
    """Raised when a place cannot run a command, or not in isolation."""


@contextmanager
def boundary(name: Boundary, stage: str) -> Iterator[None]:
    """Attribute any exception raised inside to `name`, unless an inner boundary did so already.

    A cancellation that nobody asked of this task is an exception like any other.
    """
    try:
        yield
    except RolloutError:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RolloutError(name, stage, "it cancelled itself") from error
    except Exception as error:
        raise RolloutError(name, stage, f"{type(error).__name__}: {error}") from error
