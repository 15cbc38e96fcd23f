"""The step table: what credit is computed from.

One row is one decision: a call to the policy together with the environment steps that it caused. Columns are numpy
arrays of one length, in any order; estimators sort by turn themselves. A rollout without a valid score keeps its
rows, marked invalid: they get advantage 0 and enter no statistic.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.training.errors import MissingColumnError
from palestra.trajectories.model import BoolArray, IntArray

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """Columns over S decisions. Integer ids are dense: 0..n-1."""

    group: IntArray  # (S,) the task group
    rollout: IntArray  # (S,)
    turn: IntArray  # (S,) position of the decision within its rollout
    reward: (
        Float64Array  # (S,) summed over the decision's environment steps; a rollout's rows sum to its score
    )
    anchor: IntArray  # (S,) equal within a group where the decision was taken in the same state; -1: unknown
    valid: BoolArray  # (S,) False for every row of a rollout without a valid score
    tokens: IntArray  # (S,) sampled tokens of the decision
    extras: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)  # (S,) each, named in EXTRAS

    @classmethod
    def from_columns(
        cls,
        *,
        group: Sequence[Hashable],
        rollout: Sequence[Hashable],
        turn: Sequence[int],
        reward: Sequence[float],
        anchor: Sequence[Hashable],
        **optional: Sequence[Any],
    ) -> StepTable:
        """A table from plain lists. Optional: `valid` (default all true), `tokens` (default 1), those in EXTRAS.

        An anchor of None is unknown and equals nothing, not even another None.
        Raises ValueError for columns of different lengths, an unknown column, a rollout in two groups.
        """
        size = len(group)
        valid = optional.pop("valid", [True] * size)
        tokens = optional.pop("tokens", [1] * size)
        unknown = sorted(optional.keys() - EXTRAS.keys())
        if unknown:
            raise ValueError(f"unknown columns {unknown}; optional are valid, tokens, {', '.join(EXTRAS)}")
        table = cls(
            group=factorise(group),
            rollout=factorise(rollout),
            turn=np.asarray(turn, np.int32),
            reward=np.asarray(reward, np.float64),
            anchor=_anchors(anchor),
            valid=np.asarray(valid, np.bool_),
            tokens=np.asarray(tokens, np.int32),
            extras={name: EXTRAS[name](values) for name, values in optional.items()},
        )
        lengths = {name: len(values) for name, values in table.columns().items()}
        if set(lengths.values()) != {size}:
            raise ValueError(f"columns have different lengths: {lengths}")
        if (table.rollout_groups()[table.rollout] != table.group).any():
            raise ValueError(
                "a rollout is in two groups: give rollouts names that are distinct across groups"
            )
        return table

    def __len__(self) -> int:
        return len(self.group)

    def columns(self) -> dict[str, npt.NDArray[Any]]:
        """Every column by name, shape (S,) each."""
        names = ("group", "rollout", "turn", "reward", "anchor", "valid", "tokens")
        return {name: getattr(self, name) for name in names} | dict(self.extras)

    def extra(self, name: str) -> npt.NDArray[Any]:
        """An optional column, shape (S,). Raises MissingColumnError where the table was made without it."""
        if name not in self.extras:
            raise MissingColumnError(name, *_SOURCES.get(name, ("an optional column", _RECORDED)))
        return self.extras[name]

    def time_order(self) -> npt.NDArray[np.intp]:
        """Row indices sorted by (rollout, turn), shape (S,)."""
        return np.lexsort((self.turn, self.rollout))

    def scores(self) -> Float64Array:
        """Sum of rewards per rollout, shape (number of rollouts,)."""
        scores = np.zeros(self._num_rollouts())
        np.add.at(scores, self.rollout, self.reward)
        return scores

    def rollout_groups(self) -> IntArray:
        """Group of each rollout, shape (number of rollouts,)."""
        groups = np.zeros(self._num_rollouts(), np.int32)
        groups[self.rollout] = self.group
        return groups

    def rollout_valid(self) -> BoolArray:
        """Validity of each rollout, shape (number of rollouts,)."""
        valid = np.ones(self._num_rollouts(), np.bool_)
        np.logical_and.at(valid, self.rollout, self.valid)
        return valid

    def _num_rollouts(self) -> int:
        return int(self.rollout.max(initial=-1)) + 1


def _floats(values: Sequence[float]) -> Float64Array:
    return np.asarray(values, np.float64)


def factorise(values: Sequence[Hashable]) -> IntArray:
    """Dense ids in order of first appearance, shape (len(values),)."""
    ids: dict[Hashable, int] = {}
    return np.fromiter((ids.setdefault(v, len(ids)) for v in values), np.int32, len(values))


def _anchors(anchors: Sequence[Hashable]) -> IntArray:
    known = np.fromiter((a is not None for a in anchors), np.bool_, len(anchors))
    ids = np.full(len(anchors), -1, np.int32)
    ids[known] = factorise([a for a in anchors if a is not None])
    return ids


EXTRAS: Mapping[str, Callable[[Sequence[Any]], npt.NDArray[Any]]] = {
    "node": _anchors,
    "action": _anchors,
    "matched": lambda values: np.asarray(values, np.bool_),
    "baseline": _floats,
    "value": _floats,
    "energy": _floats,
    "duration_s": _floats,
    "logprob": _floats,
    "log_ratio": _floats,
    "process": _floats,
    "weight": _floats,
    "branch": _anchors,
}
"""Optional columns, and how their values are read. Recorded rollouts fill in those of `training.decisions.RECORDED`;
`matched` where their world knows an expert; `baseline` and `log_ratio` where a run's config asks for them. `value` is
for tables from elsewhere, since there is no critic here.

node        names the node of a tree of rollouts that the decision is: equal where rollouts share it; None: no node
action      names the action taken; None: unknown
matched     the action was the expert's (UI-S1)
baseline    score of a greedy rollout of the same task (ReMax)
value       a critic's estimate of the return from here on (GAE)
energy      sum over the decision's tokens of 1 - 2 p + sum p^2, the squared norm of the score (token baseline)
duration_s  seconds that the decision's actions took
logprob     mean log-probability of the decision's tokens, in nats
log_ratio   log(policy / reference policy) of the decision's tokens, summed, in nats
process     reward of the decision itself, judged step by step and in no way part of `reward`
weight      factor on the decision's advantage, for an adjustment
branch      names the sub-agent that decided, within its rollout; None: the agent itself
"""

_RECORDED = "Recorded rollouts have it"
_SOURCES: Mapping[str, tuple[str, str]] = {
    "matched": (
        "whether each action was the expert's",
        "Recorded rollouts have it in worlds that go along an expert's path, such as web-offline",
    ),
    "value": (
        "a critic's estimate of the return from each decision on",
        "Recorded rollouts have none, since no critic is trained here",
    ),
    "log_ratio": (
        "log(policy / reference policy) of each decision",
        "A training run computes it where `adjust` names confidence_punished",
    ),
    "baseline": (
        "the score of a greedy rollout of the same task",
        "A training run plays one where `estimator` is remax",
    ),
}
"""What a column that may be missing means, and where it comes from."""
