"""What is to be run: one attempt at one task, and what all attempts of a run share."""

from __future__ import annotations

from dataclasses import dataclass, field

from palestra.tasks.task import Task
from palestra.trajectories.model import Mode, Sampling

LOST_RUN = "~lost"
"""How the run id ends under which attempts are kept that died with their process: no outcomes of the run."""


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt to be made. Jobs of one `group_id` are attempts at one task under one policy."""

    task: Task
    group_id: str
    sample_index: int = 0

    def rollout_id(self, run_id: str) -> str:
        """Names the rollout of this job in run `run_id`."""
        return f"{run_id}/{self.group_id}/{self.sample_index}"

    def lost_id(self, run_id: str, number: int) -> str:
        """Names what is kept of attempt `number` (from 1) if the process dies before it has ended."""
        return f"{self.rollout_id(run_id)}~{number}"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What all attempts of a run share."""

    run_id: str
    mode: Mode = "train"
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    attempts: int = 3
    """Tries per job when infrastructure fails."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {self.attempts}")
