"""Tables of success with intervals, and of what went wrong, for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from palestra.evaluation.passk import Estimate, Outcomes, collect, pass_at_k
from palestra.trajectories.model import Rollout
from palestra.viewer.text import visible

MAX_CAUSES = 5
"""Different causes of failure that are listed."""
_CAUSE_CHARS = 400


def success_table(runs: Mapping[str, Iterable[Rollout]], samples: int) -> Table:
    """pass@1 and, with several attempts per task, pass@k of each run. Raises NoScoresError."""
    ks = [1] if samples == 1 else [1, samples]
    table = Table("run", *[f"pass@{k} (95 %)" for k in ks], "tasks", "rollouts", "failed", box=None)
    for name, rollouts in runs.items():
        outcomes = collect(rollouts)
        first = pass_at_k(outcomes)
        counts = (str(first.tasks), str(first.rollouts), str(first.failed))
        table.add_row(escape(name), *[_cell(outcomes, k) for k in ks], *counts)
    return table


def print_failures(console: Console, rollouts: Sequence[Rollout]) -> None:
    """How many rollouts have no reward, and why, the most frequent cause first; nothing where all have one."""
    causes = Counter(_cause(r) for r in rollouts if r.reward is None)
    if not causes:
        return
    console.print(
        f"[red]{causes.total()} of {len(rollouts)} rollouts failed[/] and have no reward", highlight=False
    )
    for cause, count in causes.most_common(MAX_CAUSES):
        console.print(f"  {count:>4}  {escape(cause)}", highlight=False, soft_wrap=True)
    if len(causes) > MAX_CAUSES:
        console.print(f"        and {len(causes) - MAX_CAUSES} more causes", highlight=False)


def percent(estimate: Estimate) -> str:
    """For example 61.3 % (57.0 - 65.4)."""
    return f"{100 * estimate.value:.1f} % ({100 * estimate.low:.1f} - {100 * estimate.high:.1f})"


def _cell(outcomes: Outcomes, k: int) -> str:
    """pass@k over the tasks with k scored rollouts, and how many those are where it is not all."""
    enough = outcomes.where_attempts(k)
    if not enough.rewards:
        return "too few scored"
    only = f", {len(enough.rewards)} tasks" if len(enough.rewards) < len(outcomes.rewards) else ""
    return percent(pass_at_k(enough, k)) + only


def _cause(rollout: Rollout) -> str:
    failure = rollout.failure
    if failure is None:
        return "not judged"
    message = visible(failure.message)
    cut = message if len(message) <= _CAUSE_CHARS else message[:_CAUSE_CHARS] + "..."
    return f"{failure.boundary} failed in {failure.stage}: {cut}"
