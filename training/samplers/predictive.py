"""DPS: predict which tasks the policy solves sometimes, and train on those.

Each task is a hidden Markov chain over three states (0: no rollout succeeds, 1: some do, 2: all do) whose transition
probabilities are learnt as Dirichlet counts. A task that is not tried drifts towards what its chain predicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.tasks.task import Task, TaskSet
from palestra.training.samplers.uniform import UniformSampler

Floats = npt.NDArray[np.float64]
NEVER, SOMETIMES, ALWAYS = range(3)


class TaskStates:
    """Predicted states of tasks. Source: maoyixiu/DPS recipe/dps/task_sampler.py BayesianHMMSampler."""

    def __init__(self, *, decay: float = 0.5, prior: float | Sequence[Sequence[float]] = 1.0) -> None:
        """`prior`: Dirichlet counts, (3, 3) with the state before as the column, or one number for all; `decay`: what
        remains of the counts beyond the prior after each update. Raises ValueError for a count that is not positive
        (a transition thought impossible and then seen would have no probability).
        """
        self._prior = np.broadcast_to(np.asarray(prior, np.float64), (3, 3))
        if (self._prior <= 0).any():
            raise ValueError(f"prior counts must be positive, got {prior}")
        self._decay = decay
        self.counts: dict[str, Floats] = {}
        self.states: dict[str, Floats] = {}
        self._before: dict[str, Floats] = {}

    def predicted(self, task_ids: Iterable[str]) -> Floats:
        """Probabilities of the three states, one row per task; a task not known yet becomes known."""
        return np.array([self.states[self._known(i)] for i in task_ids]).reshape(-1, 3)

    def observe(self, success: Mapping[str, float]) -> None:
        """Success rates between 0 and 1 by task id; every other known task drifts."""
        for task_id, rate in success.items():
            state = NEVER if rate == 0 else ALWAYS if rate == 1 else SOMETIMES
            self._advance(self._known(task_id), np.eye(3)[state], weight=1.0)
        for task_id in self.states.keys() - success.keys():
            self._advance(task_id, self.states[task_id], weight=0.0)

    def state_dict(self) -> dict[str, Any]:
        """Everything known, as plain JSON values."""
        return {
            i: [self.counts[i].tolist(), self.states[i].tolist(), self._before[i].tolist()]
            for i in sorted(self.states)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.counts = {i: np.array(known[0]) for i, known in state.items()}
        self.states = {i: np.array(known[1]) for i, known in state.items()}
        self._before = {i: np.array(known[2]) for i, known in state.items()}

    def _known(self, task_id: str) -> str:
        if task_id not in self.states:
            self.counts[task_id] = self._prior.copy()
            self.states[task_id] = self._before[task_id] = np.full(3, 1 / 3)
        return task_id

    def _advance(self, task_id: str, now: Floats, *, weight: float) -> None:
        counts = self.counts[task_id]
        joint = np.outer(now, self._before[task_id]) * counts / counts.sum(axis=0)
        counts = counts * self._decay + self._prior * (1 - self._decay) + weight * joint / joint.sum()
        ahead = counts / counts.sum(axis=0) @ now
        self.counts[task_id], self._before[task_id] = counts, now
        self.states[task_id] = ahead / ahead.sum()


class PredictiveSampler:
    """Of `candidates` times as many tasks in uniform order, those most likely to be solved sometimes."""

    def __init__(
        self,
        tasks: TaskSet,
        seed: int,
        *,
        candidates: int = 8,
        entropy_weight: float = 0.0,
        decay: float = 0.5,
        prior: float = 1.0,
    ) -> None:
        """`entropy_weight`: added to the probability per nat of uncertainty. Raises ValueError for an empty set."""
        self._uniform = UniformSampler(tasks, seed)
        self._size, self._candidates, self._entropy_weight = len(tasks), candidates, entropy_weight
        self._states = TaskStates(decay=decay, prior=prior)

    def propose(self, count: int) -> list[Task]:
        """The `count` candidates with the highest probability; the one drawn first where equal."""
        drawn = self._uniform.propose(max(count, min(count * self._candidates, self._size)))
        probabilities = self._states.predicted(task.id for task in drawn)
        entropy = -(probabilities * np.log(probabilities + 1e-10)).sum(axis=1)
        worth = probabilities[:, SOMETIMES] + self._entropy_weight * entropy
        return [drawn[i] for i in np.argsort(-worth, kind="stable")[:count]]

    def observe(self, scores: Mapping[str, Sequence[float]]) -> None:
        """Scores of the valid rollouts of each task, by task id, between 0 and 1."""
        self._states.observe({i: float(np.mean(s)) for i, s in scores.items() if len(s)})

    def state_dict(self) -> dict[str, Any]:
        """Position in the uniform order, and what is known of the tasks."""
        return {"uniform": self._uniform.state_dict(), "states": self._states.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._uniform.load_state_dict(state["uniform"])
        self._states.load_state_dict(state["states"])
