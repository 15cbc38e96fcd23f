"""Samplers by name, as a recipe picks them.

A name of a task sampler gives groups of one size. An allocator takes the option `tasks`, the name of the task
sampler that it asks (default uniform), and `task_options` for that one:

    sampler = "dars"
    sampler_options = { max_rollouts = 32, tasks = "dps" }
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from palestra.tasks.task import TaskSet
from palestra.training.losses.objective import keyword_names
from palestra.training.samplers.dapo import DynamicSampling
from palestra.training.samplers.dars import DifficultyAdaptive
from palestra.training.samplers.difficulty import DifficultySampler
from palestra.training.samplers.fixed import FixedGroups
from palestra.training.samplers.gdro import PromptGdro, RolloutGdro
from palestra.training.samplers.predictive import PredictiveSampler
from palestra.training.samplers.sampler import Allocator, TaskSampler
from palestra.training.samplers.thompson import ThompsonSampler
from palestra.training.samplers.uniform import UniformSampler
from palestra.training.samplers.xrpo import ExploreExploit

task_samplers: Mapping[str, Callable[..., TaskSampler]] = {
    "uniform": UniformSampler,
    "dps": PredictiveSampler,
    "vade": ThompsonSampler,
    "difficulty": DifficultySampler,
}
"""Which tasks: (tasks, seed, **options)."""

allocators: Mapping[str, Callable[..., Allocator]] = {
    "dapo": DynamicSampling,
    "dars": DifficultyAdaptive,
    "xrpo": ExploreExploit,
    "gdro": PromptGdro,
    "gdro_rollout": RolloutGdro,
}
"""How many rollouts of each: (task sampler, **options)."""


@dataclass(frozen=True, slots=True)
class OfTasks:
    """Groups of one size of the tasks that a task sampler picks."""

    name: str

    def __call__(self, tasks: TaskSet, seed: int, /, **options: Any) -> Allocator:
        return FixedGroups(task_samplers[self.name](tasks, seed, **options))

    @property
    def options(self) -> list[str]:
        """Names of what `options` may hold."""
        return keyword_names(task_samplers[self.name])


@dataclass(frozen=True, slots=True)
class Allocated:
    """An allocator over a task sampler of any name."""

    name: str

    def __call__(self, tasks: TaskSet, seed: int, /, **options: Any) -> Allocator:
        rest = dict(options)
        inner, inner_options = rest.pop("tasks", "uniform"), rest.pop("task_options", {})
        if inner not in task_samplers:
            raise ValueError(f"tasks: there is no {inner!r}; there are {', '.join(task_samplers)}")
        return allocators[self.name](task_samplers[inner](tasks, seed, **inner_options), **rest)

    @property
    def options(self) -> list[str]:
        """Names of what `options` may hold."""
        return [*keyword_names(allocators[self.name]), "tasks", "task_options"]


samplers: Mapping[str, OfTasks | Allocated] = {
    **{name: OfTasks(name) for name in task_samplers},
    **{name: Allocated(name) for name in allocators},
}
"""Everything that `sampler` in a recipe may name: (tasks, seed, **options) to an allocator."""
