"""A web episode in the middle: the actions that lead there, and what tells that one is there."""

from __future__ import annotations

from dataclasses import dataclass

from palestra.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Frozen:
    """How to get to a state again. Nothing shorter than its actions will do: pages in the history keep what was typed
    into them and how far they were scrolled, and visiting them once more takes as long as the actions."""

    seed_task: Task
    actions: tuple[str, ...]
    anchor: str
    state: str
