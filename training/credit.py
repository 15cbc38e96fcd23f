"""From recorded rollouts to one advantage per decision, as a run's config has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from palestra.training.advantages import adjusters, estimators, reshapers
from palestra.training.config import TrainConfig
from palestra.training.decisions import Decisions, LogRatios, decisions
from palestra.training.replay import Entry
from palestra.training.table import StepTable
from palestra.trajectories.model import FloatArray, Trajectory


@dataclass(frozen=True, slots=True, eq=False)
class Credit:
    """Advantages of the decisions of some rollouts."""

    rows: Decisions
    advantages: FloatArray  # (S,)

    @property
    def informative(self) -> float:
        """Share of the decisions with an advantage."""
        return float(np.mean(self.advantages != 0)) if len(self.advantages) else 0.0

    def by_call(self) -> dict[tuple[str, int], float]:
        """Advantage by (rollout id, Call.seq)."""
        return dict(zip(self.rows.keys, self.advantages.tolist(), strict=True))

    def entries(self, trajectories: Sequence[Trajectory], weights: Mapping[str, float]) -> list[Entry]:
        """The valid rollouts with decisions of the groups in `weights`, whose advantages are scaled by theirs."""
        calls: dict[str, dict[str, float]] = {}
        tokens: dict[str, int] = {}
        table = self.rows.table
        for (rollout, seq), advantage, valid, size in zip(
            self.rows.keys, self.advantages.tolist(), table.valid.tolist(), table.tokens.tolist(), strict=True
        ):
            if valid:
                calls.setdefault(rollout, {})[str(seq)] = advantage
                tokens[rollout] = tokens.get(rollout, 0) + size
        return [
            _entry(t, calls[t.rollout.rollout_id], tokens[t.rollout.rollout_id], weights[t.rollout.group_id])
            for t in trajectories
            if t.rollout.rollout_id in calls and t.rollout.group_id in weights
        ]


def needs_baseline(config: TrainConfig) -> bool:
    """Whether credit is computed from the score of a greedy rollout of each group."""
    return config.estimator == "remax"


def needs_reference(config: TrainConfig) -> bool:
    """Whether credit is computed from the log-probabilities of the policy that a run began with."""
    return any(change["name"] == "confidence_punished" for change in config.adjust)


def give_credit(
    trajectories: Sequence[Trajectory],
    config: TrainConfig,
    baselines: Mapping[str, float] | None = None,
    log_ratios: LogRatios | None = None,
) -> Credit:
    """Rewards reshaped, the estimator, advantages adjusted; `baselines` and `log_ratios` as in `decisions`.

    Raises MissingColumnError where the rollouts lack what the estimator needs.
    """
    rows = decisions(trajectories, baselines, log_ratios)
    return Credit(rows, advantages(rows.table, config))


def advantages(table: StepTable, config: TrainConfig) -> FloatArray:
    """The same from a table, float32 (S,)."""
    for change in config.reshape:
        table = reshapers[change["name"]](table, **_options(change))
    values = estimators[config.estimator](table, **config.estimator_options)
    for change in config.adjust:
        values = adjusters[change["name"]](values, table, **_options(change))
    return values


def _options(change: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in change.items() if name != "name"}


def _entry(t: Trajectory, credit: Mapping[str, float], tokens: int, weight: float) -> Entry:
    versions = t.rollout.policy_versions
    assert t.rollout.reward is not None
    return Entry(
        rollout_id=t.rollout.rollout_id,
        group_id=t.rollout.group_id,
        version=versions[0] if versions is not None else 0,
        score=t.rollout.reward,
        tokens=tokens,
        credit={seq: value * weight for seq, value in credit.items()},
    )
