"""What the demo says at its end: a table, summary.json and report.html, all from the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from rich.table import Table

from palestra.evaluation.compare import compare
from palestra.evaluation.passk import Estimate, collect, pass_at_k
from palestra.evaluation.report import Curve, CurvePoint, Report, Row, Story, write_report
from palestra.harness_proxy.rendering import Rendering
from palestra.training.trainer import StepResult
from palestra.trajectories.model import Rollout
from palestra.trajectories.store import Store


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a policy did on the test split, and how it went about it."""

    success: Estimate
    turns: float
    invalid: float
    """Share of invalid actions."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything the demo measured."""

    estimator: str
    seed: int
    parameters: int
    before: Behaviour
    after: Behaviour
    tokens_per_s: float
    """Sampled in training rollouts, environment and proxy included."""
    history: Sequence[StepResult]
    costs: Mapping[str, Mapping[str, float]]

    @property
    def wall_s(self) -> float:
        """Of all stages and all interrupted runs."""
        return sum(c["wall_s"] for c in self.costs.values())

    @property
    def cpu_s(self) -> float:
        """The same in CPU seconds of this process."""
        return sum(c["cpu_s"] for c in self.costs.values())


def behaviour(store: Store, run_id: str) -> Behaviour:
    """Of the rollouts of one run."""
    steps = [t.steps for t in store.trajectories(run_id=run_id)]
    actions = [s.valid_action for rollout in steps for s in rollout]
    estimate = pass_at_k(collect(store.rollouts(run_id=run_id)))
    return Behaviour(estimate, len(actions) / max(len(steps), 1), 1.0 - float(np.mean(actions)))


def write_summary(path: Path, outcome: Outcome, store: Store) -> dict[str, Any]:
    """summary.json; returns what it holds."""
    paired = compare(collect(store.rollouts(run_id="before")), collect(store.rollouts(run_id="after")))
    summary = {
        "before": _numbers(outcome.before),
        "after": _numbers(outcome.after),
        "difference": paired.difference,
        "difference_ci95": [paired.low, paired.high],
        "estimator": outcome.estimator,
        "seed": outcome.seed,
        "parameters": outcome.parameters,
        "tokens_per_s": outcome.tokens_per_s,
        "wall_s": outcome.wall_s,
        "cpu_s": outcome.cpu_s,
        "stages": outcome.costs,
    }
    path.write_bytes(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    return summary


def print_outcome(console: Console, outcome: Outcome, run_dir: Path) -> None:
    """The table at the end, and where to look next."""
    before, after = outcome.before, outcome.after
    table = Table("", "before", "after", box=None, title="unseen databases", title_justify="left")
    table.add_row("success (95 %)", _span(before.success), _span(after.success))
    table.add_row("turns per episode", f"{before.turns:.2f}", f"{after.turns:.2f}")
    table.add_row("invalid actions", f"{before.invalid:.1%}", f"{after.invalid:.1%}")
    console.print(table)
    console.print(
        f"{outcome.parameters / 1e6:.2f} M parameters, {outcome.estimator}, {len(outcome.history)} steps, "
        f"{outcome.tokens_per_s:,.0f} sampled tokens/s in rollouts, "
        f"{outcome.wall_s:.0f} s wall, {outcome.cpu_s:.0f} s CPU",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"report  {run_dir}/report.html\nfigures {run_dir}/summary.json\nlook    palestra show {run_dir}",
        soft_wrap=True,
    )


def write_page(path: Path, outcome: Outcome, store: Store, rendering: Rendering) -> None:
    """report.html."""
    before, after = outcome.before, outcome.after
    rows = [
        Row("Success on unseen databases", before.success, after.success, "percent"),
        Row("Turns per episode", before.turns, after.turns),
        Row("Invalid actions", before.invalid, after.invalid, "percent"),
    ]
    report = Report(
        title="A policy learns to query databases it has never seen",
        summary=_summary(outcome),
        rows=rows,
        curves=_curves(outcome.history, store),
        stories=_stories(store),
        decode=lambda ids: rendering.decode(list(ids)),
        columns=("Warm start", "After training"),
    )
    write_report(path, report)


def _numbers(b: Behaviour) -> dict[str, Any]:
    return {
        "success": b.success.value,
        "ci95": [b.success.low, b.success.high],
        "tasks": b.success.tasks,
        "failed": b.success.failed,
        "turns": b.turns,
        "invalid": b.invalid,
    }


def _span(e: Estimate) -> str:
    return f"{e.value:.1%} ({e.low:.1%} to {e.high:.1%})"


def _summary(outcome: Outcome) -> list[str]:
    return [
        f"A Qwen3 of {outcome.parameters / 1e6:.2f} million parameters, random weights at first, answers "
        "questions about SQLite databases by acting: it lists tables, describes them, runs queries, and submits "
        "one. After a warm start on careless demonstrations it trained for "
        f"{len(outcome.history)} steps on its own rollouts with {outcome.estimator}. The databases of the table "
        "were never seen in training.",
        f"All stages took {outcome.wall_s:.0f} s of wall time and {outcome.cpu_s:.0f} s of CPU time; "
        f"training rollouts sampled {outcome.tokens_per_s:,.0f} tokens per second.",
    ]


def _curves(history: Sequence[StepResult], store: Store) -> list[Curve]:
    def line(name: str, field: str, style: Any = "number") -> Curve:
        return Curve(name, [CurvePoint(r.step, float(getattr(r, field))) for r in history], style)

    rate = [CurvePoint(r.step, r.sampled_tokens / max(r.rollout_s, 1e-9)) for r in history]
    return [
        Curve("Success on held-out databases (dev)", _dev_points(store, history), "percent"),
        line("Success in training rollouts", "success", "percent"),
        line("Entropy (nats per token)", "entropy"),
        line("Loss", "loss"),
        line("Turns per episode", "turns"),
        line("Invalid actions", "invalid", "percent"),
        line("Largest log-probability gap, trainer and engine", "logprob_gap"),
        Curve("Sampled tokens per second", rate),
    ]


def _dev_points(store: Store, history: Sequence[StepResult]) -> list[CurvePoint]:
    points = []
    for step in [0, *[r.step for r in history]]:
        rollouts = list(store.rollouts(run_id=f"dev-{step:03d}"))
        if rollouts:
            e = pass_at_k(collect(rollouts))
            points.append(CurvePoint(step, e.value, e.low, e.high))
    return points


def _stories(store: Store) -> list[Story]:
    """A failure before, the same task solved after, and one that still fails."""
    before = {r.task_id: r for r in store.rollouts(run_id="before")}
    after = {r.task_id: r for r in store.rollouts(run_id="after")}
    learned = next((t for t in before if _solved(before[t]) is False and _solved(after.get(t))), None)
    unsolved = next((t for t in after if _solved(after[t]) is False), None)
    stories = []
    if learned is not None:
        stories.append(Story("Before training", store.get(before[learned].rollout_id), caption=learned))
        stories.append(
            Story("The same task after training", store.get(after[learned].rollout_id), caption=learned)
        )
    if unsolved is not None:
        stories.append(Story("Still failed", store.get(after[unsolved].rollout_id), caption=unsolved))
    return stories


def _solved(rollout: Rollout | None) -> bool | None:
    """None where there is no measurement."""
    return None if rollout is None or rollout.reward is None else rollout.reward >= 1.0
