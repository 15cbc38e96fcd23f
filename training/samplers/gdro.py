"""GDRO: what is hard is not drowned by what is easy. Tasks are classed by how often they are solved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    """Each difficulty class learns how many rollouts its groups get, at a price that holds the budget.

    An arm of class c is a group size n from `least` to 3 * group_size; arms are chosen together, the most probable
    combination that spends at most the budget. The cost of an arm is J + price * (n - group_size), J = p (1 - p) / n,
    the variance of the group's mean; log-weights fall by eta * cost / probability (EXP3). The price rises by 0.05 *
    (mean n - group_size) per step. A task not seen before is in the middle class. Source: kishanpb/verl-gdro
    (Rollout-GDRO).

    experimental: the code was read and not run; J, the class of a task (its last success) and a probability floor in
    place of EXP3P's confidence term are assumed.
    """

    def __init__(
        self,
        tasks: TaskSampler,
        *,
        classes: int = 5,
        least: int = 2,
        eta: float = 0.65,
        gamma: float = 0.01,
    ) -> None:
        super().__init__(tasks)
        self._classes, self._least, self._eta, self._gamma = classes, least, eta, gamma
        self._log_weights: list[list[float]] = []
        self._price = 0.0
        self._success: dict[str, float] = {}
        self._size = 0

    def propose(self, budget: Budget, played: Sequence[Group]) -> list[Draw]:
        """Everything at once, group sizes by class."""
        if played:
            return []
        self._size = budget.group_size
        arms = range(self._least, max(3 * budget.group_size, self._least) + 1)
        if not self._log_weights:
            self._log_weights = [[0.0] * len(arms) for _ in range(self._classes)]
        tasks = self._tasks.propose(budget.groups)
        members = np.bincount([self._class(task.id) for task in tasks], minlength=self._classes)
        sizes = _most_probable(np.log(self._probabilities()), members, self._least, budget.rollouts)
        return [
            Draw(draw.task, draw.group, sizes[self._class(draw.task.id)]) for draw in new_groups(tasks, 0)
        ]

    def observe(self, played: Sequence[Group]) -> None:
        """Learn the cost of each size that was played."""
        super().observe(played)
        probabilities = self._probabilities()
        for group in (g for g in played if g.valid):
            c, n, p = self._class(group.task.id), len(group.scores), min(max(group.success, 0.0), 1.0)
            cost = p * (1 - p) / n + self._price * (n - self._size)
            arm = n - self._least
            self._log_weights[c][arm] -= self._eta * cost / float(probabilities[c, arm]) / len(played)
        sizes = [len(g.scores) for g in played]
        self._price += 0.05 * (float(np.mean(sizes)) - self._size) if sizes else 0.0
        self._success |= {g.task.id: g.success for g in played if g.valid}

    def state_dict(self) -> dict[str, Any]:
        """Also the arms, the price, and the last success of each task."""
        own = {"arms": self._log_weights, "price": self._price, "success": self._success, "size": self._size}
        return super().state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        super().load_state_dict(state)
        self._log_weights = [list(arms) for arms in state["arms"]]
        self._price, self._size = float(state["price"]), int(state["size"])
        self._success = dict(state["success"])

    def _class(self, task_id: str) -> int:
        return difficulty_class(self._success.get(task_id, 0.5), self._classes)

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
