"""A task: one frozen, self-describing problem, and sets of them.

A `Task` is pure data: it travels over the wire, is hashed, logged and compared. Behaviour lives in the
environment that its `env` names (a Gymnasium id) and in the grader of its family.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class Budget(BaseModel):
    """What one attempt may use. Reaching a bound ends the episode as truncated; it is graded all the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    turns: int = Field(default=20, ge=1)
    """Environment steps."""
    tokens: int = Field(default=32_768, ge=1)
    """Prompt and sampled tokens of the longest path."""
    wall_s: float = Field(default=600.0, gt=0)
    command_s: float = Field(default=10.0, gt=0)
    """Seconds for one action of the world, for example one SQL statement."""


class Task(BaseModel):
    """One problem. Unknown keys are refused; `data` holds the fields of its family."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    """Stable across versions of the set."""
    family: str
    env: str
    """Gymnasium id, for example palestra/Sql-v0."""
    split: Split
    instruction: str
    data: dict[str, Any] = Field(default_factory=dict)
    budget: Budget = Budget()

    @property
    def content_hash(self) -> str:
        """SHA-256 over everything that decides what the task asks, in canonical JSON; 64 hex digits."""
        body = self.model_dump(mode="json", exclude={"split"})
        return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).hexdigest()


class TaskSet(Sequence[Task]):
    """A named, ordered collection of tasks with unique ids."""

    def __init__(self, name: str, tasks: Sequence[Task]) -> None:
        self.name = name
        self._tasks = tuple(tasks)
        self._by_id = {t.id: t for t in self._tasks}
        if len(self._by_id) != len(self._tasks):
            raise ValueError(f"task set {name!r} has {len(self._tasks) - len(self._by_id)} duplicate ids")

    def __getitem__(self, index: Any) -> Any:
        return self._tasks[index]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def get(self, task_id: str) -> Task | None:
        """The task with this id, or None."""
        return self._by_id.get(task_id)

    def split(self, name: Split) -> TaskSet:
        """The tasks of one split, in order."""
        return self.where(lambda task: task.split == name)

    def where(self, keep: Callable[[Task], bool]) -> TaskSet:
        """The tasks for which `keep` is true, in order."""
        return TaskSet(self.name, [t for t in self._tasks if keep(t)])
