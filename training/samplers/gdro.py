"""GDRO: what is hard is not drowned by what is easy. Tasks are classed by how often they are solved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.training.samplers.fixed import FixedGroups
from palestra.training.samplers.sampler import Budget, Draw, Group, TaskSampler, new_groups

Floats = npt.NDArray[np.float64]


def difficulty_class(success: float, classes: int) -> int:
    """Which of `classes` equal bins of [0, 1] a success rate is in; 0 is the hardest."""
    return min(int(min(max(success, 0.0), 1.0) * classes), classes - 1)


class PromptGdro(FixedGroups):
    """Groups of a difficulty class have their advantages scaled by the class's weight.

    w_c = min(C * ((1 - gamma) softmax(eta * score)_c + gamma / C), cap), score_c an average of 1 - success over the
    groups of the class with decay `beta`; C classes. 1 on average. Source: kishanpb/verl-gdro
    verl/trainer/group_dro_grpo.py (Prompt-GDRO), a scale of the loss and no resampling.

    experimental: the loss of a class is taken as 1 - success; the code was read and not run.
    """

    def __init__(
        self,
        tasks: TaskSampler,
        *,
        classes: int = 5,
        eta: float = 0.65,
        gamma: float = 0.01,
        beta: float = 0.9,
        cap: float = 10.0,
    ) -> None:
        super().__init__(tasks)
        self._eta, self._gamma, self._beta, self._cap = eta, gamma, beta, cap
        self._scores = np.zeros(classes)

    def weights(self, budget: Budget, played: Sequence[Group]) -> dict[str, float]:
        """By the class that each group's own success puts it in."""
        of_class = self._class_weights()
        return {
            g.name: float(of_class[difficulty_class(g.success, len(of_class))]) if g.valid else 1.0
            for g in played
        }

    def observe(self, played: Sequence[Group]) -> None:
        """Average the losses of the classes that were met."""
        super().observe(played)
        for c in range(len(self._scores)):
            losses = [
                1 - g.success
                for g in played
                if g.valid and difficulty_class(g.success, len(self._scores)) == c
            ]
            if losses:
                self._scores[c] = self._beta * self._scores[c] + (1 - self._beta) * float(np.mean(losses))

    def state_dict(self) -> dict[str, Any]:
        """Also the scores of the classes."""
        return super().state_dict() | {"scores": self._scores.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        super().load_state_dict(state)
        self._scores = np.array(state["scores"], np.float64)

    def _class_weights(self) -> Floats:
        classes = len(self._scores)
        share = (1 - self._gamma) * softmax(self._eta * self._scores) + self._gamma / classes
        return np.minimum(classes * share, self._cap)


class RolloutGdro(FixedGroups):
    """Each difficulty class learns how many rollouts its groups get, within the budget.

    An arm of class c is a group size n from `least` to 3 * group_size; arms are chosen together, the most probable
    combination that spends at most the budget. The cost of an arm is J(n) = p (1 - p) / n, the variance of the
    group's mean, in units of 1 / group_size; log-weights fall by eta * cost and by `decay`. A task not seen before is
    in the middle class. Source: kishanpb/verl-gdro (Rollout-GDRO).

    experimental: the code was read and not run, and what it takes for J is assumed. Departures: the cost of every
    size is known, so all arms learn, where the code learns from the one that was played (EXP3P); the budget is a bound
    and needs no price on rollouts.
    """

    def __init__(
        self,
        tasks: TaskSampler,
        *,
        classes: int = 5,
        least: int = 2,
        eta: float = 0.65,
        gamma: float = 0.01,
        decay: float = 0.9,
    ) -> None:
        super().__init__(tasks)
        self._least, self._eta, self._gamma, self._decay = least, eta, gamma, decay
        self._size = 0
        self._log_weights: list[list[float]] = [[] for _ in range(classes)]
        self._success: dict[str, float] = {}

    def propose(self, budget: Budget, played: Sequence[Group]) -> list[Draw]:
        """Everything at once, group sizes by class."""
        if played:
            return []
        self._begin(budget.group_size)
        draws = new_groups(self._tasks.propose(budget.groups), 0)
        of_class = [self._class(draw.task.id) for draw in draws]
        members = np.bincount(of_class, minlength=len(self._log_weights))
        sizes = _most_probable(np.log(self._probabilities()), members, self._least, budget.rollouts)
        return [replace(draw, rollouts=sizes[c]) for draw, c in zip(draws, of_class, strict=True)]

    def observe(self, played: Sequence[Group]) -> None:
        """Learn what each size costs the classes that were met."""
        super().observe(played)
        arms = self._least + np.arange(len(self._log_weights[0]))
        for c in range(len(self._log_weights)):
            met = [min(max(g.success, 0.0), 1.0) for g in played if g.valid and self._class(g.task.id) == c]
            if met:
                cost = float(np.mean([p * (1 - p) for p in met])) * self._size / arms
                self._log_weights[c] = (
                    self._decay * np.array(self._log_weights[c]) - self._eta * cost
                ).tolist()
        self._success |= {g.task.id: g.success for g in played if g.valid}

    def state_dict(self) -> dict[str, Any]:
        """Also the arms, and the last success of each task."""
        own = {"arms": self._log_weights, "success": dict(self._success), "size": self._size}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        super().load_state_dict(state)
        self._log_weights = [list(arms) for arms in state["arms"]]
        self._size, self._success = int(state["size"]), dict(state["success"])

    def _begin(self, group_size: int) -> None:
        arms = max(3 * group_size - self._least, 0) + 1
        if self._size != group_size:
            self._size, self._log_weights = group_size, [[0.0] * arms for _ in self._log_weights]

    def _class(self, task_id: str) -> int:
        return difficulty_class(self._success.get(task_id, 0.5), len(self._log_weights))

    def _probabilities(self) -> Floats:
        arms = np.array([softmax(np.array(weights)) for weights in self._log_weights])
        return np.asarray((1 - self._gamma) * arms + self._gamma / arms.shape[1])


def softmax(values: Floats) -> Floats:
    """exp(x) / sum exp(x), shape of `values`."""
    shifted = np.exp(values - values.max())
    return np.asarray(shifted / shifted.sum())


def _most_probable(log_p: Floats, members: npt.NDArray[Any], least: int, rollouts: int) -> list[int]:
    """Group size of each class: the largest sum of members * log p that spends at most `rollouts`.

    Dynamic programming over classes and rollouts spent. Where even the least sizes spend more, those.
    """
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for c, count in enumerate(members):
        following: dict[int, tuple[float, list[int]]] = {}
        for spent, (value, sizes) in best.items():
            for arm in range(log_p.shape[1] if count else 1):
                cost, worth = spent + int(count) * (least + arm), value + int(count) * float(log_p[c, arm])
                if cost <= rollouts and worth > following.get(cost, (-math.inf, []))[0]:
                    following[cost] = worth, [*sizes, least + arm]
        best = following
    if not best:
        return [least] * len(members)
    return max(best.items(), key=lambda item: (item[1][0], item[0]))[1][1]
