"""Credit assignment: pure functions from a step table to one advantage per decision.

    advantages = estimators["gigpo"](table, gamma=0.95)

Every estimator has the signature `(table: StepTable, *, ...) -> float32[S]`, in the row order of the table.
"""

from palestra.training.advantages.gigpo import gigpo
from palestra.training.advantages.grpo import grpo

estimators = {"grpo": grpo, "gigpo": gigpo}
"""Estimators by name."""

__all__ = ["estimators", "gigpo", "grpo"]
