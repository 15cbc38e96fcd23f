"""Samplers: which tasks come next, how many rollouts they get, and which rollouts are worth training on.

The trainer asks an `Allocator`, which asks a `TaskSampler`; `samplers` has them by name. Both have a state that
checkpoints carry. Filters and schedules are pure functions or frozen values without a state.
"""

from palestra.training.samplers.dapo import DynamicSampling, informative_rows
from palestra.training.samplers.dars import DifficultyAdaptive, extra_rollouts
from palestra.training.samplers.difficulty import DifficultySampler
from palestra.training.samplers.fixed import FixedGroups
from palestra.training.samplers.gdro import PromptGdro, RolloutGdro
from palestra.training.samplers.horizon import HorizonSchedule
from palestra.training.samplers.predictive import PredictiveSampler, TaskStates
from palestra.training.samplers.registry import samplers
from palestra.training.samplers.sampler import Allocator, Budget, Draw, Group, TaskSampler
from palestra.training.samplers.staleness import rollout_capacity
from palestra.training.samplers.thompson import ThompsonSampler
from palestra.training.samplers.uniform import UniformSampler
from palestra.training.samplers.xrpo import ExploreExploit

__all__ = [
    "Allocator",
    "Budget",
    "DifficultyAdaptive",
    "DifficultySampler",
    "Draw",
    "DynamicSampling",
    "ExploreExploit",
    "FixedGroups",
    "Group",
    "HorizonSchedule",
    "PredictiveSampler",
    "PromptGdro",
    "RolloutGdro",
    "TaskSampler",
    "TaskStates",
    "ThompsonSampler",
    "UniformSampler",
    "extra_rollouts",
    "informative_rows",
    "rollout_capacity",
    "samplers",
]
