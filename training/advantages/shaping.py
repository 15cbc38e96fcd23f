"""Rewards changed before credit is computed from them: a table in, a table out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from palestra.training.table import StepTable


def gated(table: StepTable, *, threshold: float = 1.0, weight: float = 1.0) -> StepTable:
    """G-RA: r'_t = r_t + w * p_t where the rollout's score is at least `threshold`, else r_t.

    p is the column `process`: low rewards for single decisions count only where the high one, the outcome, was
    reached, so that no amount of them makes up for it. R = R_high + 1[R_high >= delta] * sum_t r_low_t.
    experimental: after descriptions of gated reward accumulation; that the bound itself passes is assumed.

    Raises ValueError without `process`.
    """
    passed = (table.scores() >= threshold)[table.rollout]
    return replace(table, reward=table.reward + np.where(passed, weight * table.extra("process"), 0.0))
