"""What a sampler is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from palestra.tasks.task import Task


class Sampler(Protocol):
    """Chooses tasks and may learn from what came of them."""

    def propose(self, count: int) -> list[Task]:
        """The next `count` tasks."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next proposals, as plain JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        ...


class LearningSampler(Sampler, Protocol):
    """A sampler that learns from what came of its tasks."""

    def observe(self, scores: Mapping[str, Sequence[float]]) -> None:
        """Scores of the valid rollouts of each task, by task id; a task whose rollouts all failed is left out."""
        ...
