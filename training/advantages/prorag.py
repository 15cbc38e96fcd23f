"""ProRAG: outcome and process, each on its own scale."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.groups import Norm, normalised
from palestra.training.advantages.grpo import rollout_advantages
from palestra.training.table import StepTable
from palestra.trajectories.model import FloatArray


def prorag(
    table: StepTable, *, process_weight: float = 0.5, norm: Norm = "std", eps: float = 1e-6
) -> FloatArray:
    """A_it = A^O_i + w * A^P_it: GRPO's advantage of the outcome, and the decision's process reward in its group.

    A^O_i compares the rollout's score with those of its task. A^P_it = (p_it - mean) / (std + eps) over all decisions
    of the task, if it has several rollouts, p the column `process`: the reward of the decision itself, from a process
    reward model or the world.
    experimental: Source is the idea of ProRAG alone, advantages of two granularities added up; its formula, and the
    weight, are assumed.

    Returns float32 (S,). Raises ValueError without `process`.
    """
    outcome = rollout_advantages(table, norm=norm, eps=eps)[table.rollout]
    peers = np.bincount(table.rollout_groups(), table.rollout_valid())
    counted = table.rollout_valid()[table.rollout] & (peers[table.group] > 1)
    process = normalised(table.extra("process"), table.group, counted, norm=norm, eps=eps)
    return (outcome + process_weight * process).astype(np.float32)
