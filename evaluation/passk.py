"""How well a policy does on a set of tasks: pass@k and mean reward, each with a 95 % interval.

`collect` turns rollouts into `Outcomes` (rewards by task); `pass_at_k` and `mean_reward` turn those into an
`Estimate`. Every task weighs the same, whatever its number of attempts. A rollout without a score is counted
in `Estimate.failed` and enters no mean: that is honest only while the number is small, so look at it.

The intervals, and why:
- One attempt per task and k = 1: successes are independent trials, and the Wilson score interval keeps its
  coverage at few tasks and near 0 and 1, where the normal one does not (Brown, Cai and DasGupta 2001).
- Otherwise: attempts at one task resemble each other, so tasks are what is sampled, not rollouts. The
  percentile bootstrap draws whole tasks (a cluster bootstrap). Below about 20 tasks it is a little narrow.
- Every task has the same value: resampling shows no spread, which does not prove that there is none. By
  Wilson's bound for 0 of n, a share of up to z^2 / (n + z^2) of unseen tasks may differ, each by as much as
  the scale allows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from palestra.evaluation.errors import (
    DuplicateRolloutError,
    NoScoresError,
    TooFewAttemptsError,
)
from palestra.trajectories.model import Rollout

SUCCESS = 1.0
"""Rewards at or above this are successes."""

RESAMPLES = 4000
Z95 = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""

TIE = 1e-9
"""Values of tasks that differ by less are equal, so that rounding makes no difference out of none."""

Values = npt.NDArray[np.float64]
_CHUNK_CELLS = 2_000_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval. `low` and `high` are nan where the data cannot give an interval."""

    value: float
    low: float
    high: float
    tasks: int
    """Tasks with at least one scored rollout."""
    rollouts: int
    """Scored rollouts, the only ones that the value rests on."""
    failed: int
    """Rollouts without a valid score, over all tasks. They are no zeros."""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Rewards of a run by task. A task whose rollouts all failed appears in `failed` alone."""

    rewards: Mapping[str, Sequence[float]]
    failed: Mapping[str, int] = field(default_factory=dict)
    """Rollouts without a valid score by task."""
    content_hashes: Mapping[str, str] = field(default_factory=dict)
    """`Task.content_hash` by task id, where known: `compare` refuses tasks that changed."""

    def where_attempts(self, at_least: int) -> Outcomes:
        """These outcomes without the tasks that have fewer than `at_least` scored rollouts."""
        kept = {task: r for task, r in self.rewards.items() if len(r) >= at_least}
        return Outcomes(kept, self.failed, self.content_hashes)


def collect(rollouts: Iterable[Rollout]) -> Outcomes:
    """Group rollouts by task. Raises DuplicateRolloutError when a rollout id comes twice."""
    hashes: dict[str, str] = {}
    rewards: dict[str, list[float]] = defaultdict(list)
    failed: dict[str, int] = defaultdict(int)
    seen: set[str] = set()
    for rollout in rollouts:
        if rollout.rollout_id in seen:
            raise DuplicateRolloutError(
                f"rollout {rollout.rollout_id!r} was given twice; pass each rollout once"
            )
        seen.add(rollout.rollout_id)
        if rollout.task_hash:
            hashes[rollout.task_id] = rollout.task_hash
        if rollout.reward is None:
            failed[rollout.task_id] += 1
        else:
            rewards[rollout.task_id].append(rollout.reward)
    return Outcomes(dict(rewards), dict(failed), hashes)


def pass_at_k(
    outcomes: Outcomes, k: int = 1, *, success: float = SUCCESS, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """The chance that at least one of `k` attempts at a task succeeds, averaged over tasks.

    Per task with n scored rollouts of which c reach `success`: 1 - C(n-c, k) / C(n, k), unbiased (Chen et al.
    2021, arXiv:2107.03374, eq. 1). The interval is described in the module docstring.

    Raises NoScoresError, and TooFewAttemptsError where a task has fewer than `k` scored rollouts.
    """
    values = task_success(outcomes, k, success=success)
    if k == 1 and all(len(r) <= 1 for r in outcomes.rewards.values()):
        low, high = wilson_interval(int(values.sum()), len(values))
    else:
        low, high = task_interval(values, floor=0.0, ceiling=1.0, resamples=resamples, seed=seed)
    return _estimate(outcomes, values, low, high)


def mean_reward(outcomes: Outcomes, *, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """The mean over tasks of each task's mean reward, with a bootstrap interval over tasks.

    A reward has no known bounds, so `low` and `high` are nan where all tasks have the same mean.
    Raises NoScoresError.
    """
    values = np.array([float(np.mean(r)) for r in _scored(outcomes).values()])
    low, high = task_interval(values, floor=np.nan, ceiling=np.nan, resamples=resamples, seed=seed)
    return _estimate(outcomes, values, low, high)


def task_success(outcomes: Outcomes, k: int = 1, *, success: float = SUCCESS) -> Values:
    """pass@k of each task that has scored rollouts, in the order of `outcomes.rewards`; shape (tasks,)."""
    scored = _scored(outcomes)
    short = {task: len(r) for task, r in scored.items() if len(r) < k}
    if short:
        task, count = min(short.items(), key=lambda item: item[1])
        raise TooFewAttemptsError(
            f"pass@{k} needs {k} scored rollouts of every task; {len(short)} of {len(scored)} tasks have "
            f"fewer, for example {task!r} with {count} (and {outcomes.failed.get(task, 0)} failed). Lower k, "
            f"run more attempts, or leave those tasks out with outcomes.where_attempts({k})"
        )
    return np.array([unbiased_pass_at_k(len(r), sum(x >= success for x in r), k) for r in scored.values()])


def unbiased_pass_at_k(attempts: int, successes: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k), as a product so that nothing overflows (Chen et al. 2021, fig. 3)."""
    if not (1 <= k <= attempts and 0 <= successes <= attempts):
        raise ValueError(
            f"need 1 <= k <= attempts and 0 <= successes <= attempts, got {(attempts, successes, k)}"
        )
    if attempts - successes < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(attempts - successes + 1, attempts + 1)))


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95 % score interval of a binomial proportion (Wilson 1927)."""
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"need 0 <= successes <= trials and trials > 0, got {successes} of {trials}")
    share, z2 = successes / trials, Z95**2
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 * np.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2)) / (1 + z2 / trials)
    low = 0.0 if successes == 0 else float(centre - half)
    high = 1.0 if successes == trials else float(centre + half)
    return low, high


def task_interval(
    values: Values, *, floor: float, ceiling: float, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean of one value per task, shape (tasks,).

    `floor` and `ceiling` bound a task's value (nan: unknown); they decide the interval where all are equal.
    """
    if np.ptp(values) < TIE:
        value, unseen = float(values[0]), Z95**2 / (len(values) + Z95**2)
        return value - unseen * (value - floor), value + unseen * (ceiling - value)
    low, high = np.quantile(_bootstrap_means(values, resamples, seed), [0.025, 0.975])
    return float(low), float(high)


def _bootstrap_means(values: Values, resamples: int, seed: int) -> Values:
    """Means of `resamples` draws of len(values) tasks with replacement, shape (resamples,)."""
    rng = np.random.default_rng(seed)
    rows = max(1, _CHUNK_CELLS // len(values))
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    return np.concatenate(
        [values[rng.integers(len(values), size=(n, len(values)))].mean(axis=1) for n in sizes]
    )


def _scored(outcomes: Outcomes) -> dict[str, Sequence[float]]:
    scored = {task: r for task, r in outcomes.rewards.items() if len(r) > 0}
    if not scored:
        raise NoScoresError(
            f"no rollout has a valid score ({sum(outcomes.failed.values())} failed), so nothing can be said"
        )
    return scored


def _estimate(outcomes: Outcomes, values: Values, low: float, high: float) -> Estimate:
    rollouts = sum(len(r) for r in outcomes.rewards.values())
    return Estimate(float(values.mean()), low, high, len(values), rollouts, sum(outcomes.failed.values()))
