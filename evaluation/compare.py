"""Did the second run do better than the first, on the tasks that both played?

Tasks differ far more from each other than runs do, so the comparison is paired: the difference of success is
taken task by task, and its interval comes from drawing tasks (docstring of `passk.py`). With one attempt
per task and run the exact McNemar test is given too. It compares what was recorded and runs nothing.

    compare(collect(store.rollouts(run_id="before")), collect(store.rollouts(run_id="after")))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from palestra.evaluation.errors import NotComparableError
from palestra.evaluation.passk import (
    RESAMPLES,
    SUCCESS,
    TIE,
    Estimate,
    Outcomes,
    Values,
    pass_at_k,
    task_interval,
    task_success,
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs over the tasks in which both have a scored rollout."""

    before: Estimate
    """pass@1 over the shared tasks; `failed` counts those tasks' failed rollouts."""
    after: Estimate
    difference: float
    """Success after minus success before, averaged over shared tasks; -1 to 1."""
    low: float
    high: float
    """95 % interval of `difference`."""
    p_value: float | None
    """Exact two-sided McNemar test; None where a task has several attempts."""
    improved: tuple[str, ...]
    """Ids of the tasks whose success rate rose."""
    worsened: tuple[str, ...]
    """Ids of the tasks whose success rate fell."""
    only_before: tuple[str, ...]
    """Tasks without a scored rollout after; they do not enter the comparison."""
    only_after: tuple[str, ...]
    content_checked: bool
    """Every shared task is known by its content hash to be the same in both runs."""


def compare(
    before: Outcomes | Mapping[str, Sequence[float]],
    after: Outcomes | Mapping[str, Sequence[float]],
    *,
    success: float = SUCCESS,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare two runs given as outcomes (see `passk.collect`) or as rewards by task id.

    Raises NotComparableError when no task is scored in both runs, or when a shared task's content differs.
    """
    first, second = _outcomes(before), _outcomes(after)
    shared = _shared(first, second)
    checked = _check_content(first, second, shared)
    one, two = _restrict(first, shared), _restrict(second, shared)
    change = task_success(two, success=success) - task_success(one, success=success)
    low, high = task_interval(change, floor=-1.0, ceiling=1.0, resamples=resamples, seed=seed)
    return Comparison(
        before=pass_at_k(one, success=success, resamples=resamples, seed=seed),
        after=pass_at_k(two, success=success, resamples=resamples, seed=seed),
        difference=float(change.mean()),
        low=low,
        high=high,
        p_value=_p_value(one, two, change),
        improved=tuple(task for task, d in zip(shared, change, strict=True) if d > TIE),
        worsened=tuple(task for task, d in zip(shared, change, strict=True) if d < -TIE),
        only_before=_only(first, shared),
        only_after=_only(second, shared),
        content_checked=checked,
    )


def mcnemar_p(improved: int, worsened: int) -> float:
    """Exact two-sided p of McNemar's test: under no change each task that changed is a fair coin.

    p = min(1, 2 * P(X <= min(improved, worsened))) with X ~ Binomial(improved + worsened, 1/2).
    """
    changed = improved + worsened
    tail = sum(comb(changed, i) for i in range(min(improved, worsened) + 1))
    return min(1.0, float(2 * tail / 2**changed))


def _outcomes(run: Outcomes | Mapping[str, Sequence[float]]) -> Outcomes:
    return run if isinstance(run, Outcomes) else Outcomes(run)


def _played(run: Outcomes) -> set[str]:
    return {task for task, rewards in run.rewards.items() if len(rewards) > 0}


def _shared(before: Outcomes, after: Outcomes) -> list[str]:
    shared = sorted(_played(before) & _played(after))
    if not shared:
        raise NotComparableError(
            f"no task is scored in both runs: before has {_some(_played(before))}, after has "
            f"{_some(_played(after))}; evaluate both on the same task set"
        )
    return shared


def _some(tasks: set[str]) -> str:
    examples = ", ".join(repr(t) for t in sorted(tasks)[:3])
    return f"{len(tasks)} ({examples}{', ...' if len(tasks) > 3 else ''})" if tasks else "none"


def _check_content(before: Outcomes, after: Outcomes, shared: Sequence[str]) -> bool:
    pairs = {t: (before.content_hashes.get(t), after.content_hashes.get(t)) for t in shared}
    known = {t: hashes for t, hashes in pairs.items() if None not in hashes}
    differ = {t for t, (one, two) in known.items() if one != two}
    if differ:
        raise NotComparableError(
            f"{_some(differ)} of {len(shared)} shared tasks changed their content between the runs, so their "
            "rewards measure different things; evaluate both runs on one version of the task set"
        )
    return len(known) == len(shared)


def _restrict(run: Outcomes, tasks: Sequence[str]) -> Outcomes:
    """The same run with only `tasks`, in their order, so that two runs line up."""
    return Outcomes({t: run.rewards[t] for t in tasks}, {t: run.failed[t] for t in tasks if t in run.failed})


def _only(run: Outcomes, shared: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(_played(run) - set(shared)))


def _p_value(before: Outcomes, after: Outcomes, change: Values) -> float | None:
    if any(len(r) != 1 for run in (before, after) for r in run.rewards.values()):
        return None
    return mcnemar_p(int(np.sum(change > 0)), int(np.sum(change < 0)))
