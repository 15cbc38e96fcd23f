"""Tables of success with intervals, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table

from palestra.evaluation.passk import Estimate, collect, pass_at_k
from palestra.trajectories.model import Rollout


def success_table(runs: Mapping[str, Iterable[Rollout]], samples: int) -> Table:
    """pass@1 and, with several attempts per task, pass@k of each run."""
    ks = [1] if samples == 1 else [1, samples]
    table = Table("run", *[f"pass@{k} (95 %)" for k in ks], "tasks", "rollouts", "failed", box=None)
    for name, rollouts in runs.items():
        outcomes = collect(rollouts)
        estimates = [pass_at_k(outcomes, k) for k in ks]
        first = estimates[0]
        counts = (str(first.tasks), str(first.rollouts), str(first.failed))
        table.add_row(name, *[percent(e) for e in estimates], *counts)
    return table


def percent(estimate: Estimate) -> str:
    """For example 61.3 % (57.0 - 65.4)."""
    return f"{estimate.value:.1%} ({100 * estimate.low:.1f} - {100 * estimate.high:.1f})".replace(
        "%", " %", 1
    )
