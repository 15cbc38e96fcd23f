"""ScalingInter: few turns at first, more later."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HorizonSchedule:
    """The turns that a rollout may take, by training step.

    Source: Xi et al. 2025 (AgentGym-RL), arXiv:2509.08755; code WooooDyy/AgentGym-RL ray_trainer.py
    StepRoundsScheduler. Departure: a function of the step alone; the code counts, and after a resume at a multiple
    of `steps_per_stage` enters the next stage one step later instead of a stage later.

    Raises ValueError for no stages, or stages of no steps.
    """

    turns: tuple[int, ...] = (10, 20, 30)
    steps_per_stage: int = 100

    def __post_init__(self) -> None:
        if not self.turns or self.steps_per_stage < 1:
            raise ValueError(f"a schedule needs stages of at least one step, got {self}")

    def at(self, step: int) -> int:
        """Turns in training step `step`, counted from 0."""
        return self.turns[min(step // self.steps_per_stage, len(self.turns) - 1)]
