"""Samplers: which tasks come next, how many rollouts they get, and which rollouts are worth training on.

A sampler has `propose`, and a state that checkpoints carry; one that learns also has `observe`. Allocators, filters
and schedules are pure functions or frozen values without a state.
"""

from palestra.training.samplers.dapo import informative_rows
from palestra.training.samplers.dars import extra_rollouts
from palestra.training.samplers.horizon import HorizonSchedule
from palestra.training.samplers.predictive import PredictiveSampler, TaskStates
from palestra.training.samplers.sampler import LearningSampler, Sampler
from palestra.training.samplers.staleness import rollout_capacity
from palestra.training.samplers.thompson import ThompsonSampler
from palestra.training.samplers.uniform import UniformSampler

__all__ = [
    "HorizonSchedule",
    "LearningSampler",
    "PredictiveSampler",
    "Sampler",
    "TaskStates",
    "ThompsonSampler",
    "UniformSampler",
    "extra_rollouts",
    "informative_rows",
    "rollout_capacity",
]
