"""Rolling out one model on one task set and saying how it went, as several commands do it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import typer
from rich.console import Console

from palestra.cli import settings
from palestra.cli.errors import UsageError
from palestra.cli.model_choice import ModelChoice
from palestra.cli.options import Mode, Split, write_store
from palestra.cli.progress import progress
from palestra.cli.tables import print_failures, success_table
from palestra.rollouts.harnesses import CommandLineHarness, Harness, ToolLoop
from palestra.rollouts.harnesses.recipes import find_recipe
from palestra.rollouts.local import local
from palestra.rollouts.loop import run
from palestra.rollouts.runner import Runner, RunSpec, group_jobs
from palestra.tasks.registry import load_tasks
from palestra.tasks.task import Task
from palestra.trajectories.model import Rollout, Sampling
from palestra.trajectories.store import Store

TOOL_LOOP = ToolLoop.name
MAX_LOOPS = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """Which model plays what, and where it is kept."""

    tasks: str
    split: Split
    limit: int | None
    samples: int
    model: ModelChoice
    run_dir: Path
    run: str
    mode: Mode
    seed: int
    temperature: float
    max_reply_tokens: int
    harness: str = TOOL_LOOP
    concurrency: int | None = None

    @property
    def settings(self) -> dict[str, object]:
        """What must stay the same while a run is continued."""
        return {
            "model": self.model.identity,
            "mode": self.mode,
            "seed": self.seed,
            "temperature": self.temperature,
            "max_reply_tokens": self.max_reply_tokens,
            **({"harness": self.harness} if self.harness != TOOL_LOOP else {}),
        }

    @property
    def attempts_at_once(self) -> int:
        """As asked for, or as many as this machine can bear."""
        return self.concurrency or (MAX_LOOPS if self.harness == TOOL_LOOP else 2 * (os.cpu_count() or 1))


def play(plan: Plan) -> None:
    """Play the tasks and print success with intervals; those of earlier calls are counted, not played again.

    Exits with status 1 when there are rollouts and all failed. Raises UsageError.
    """
    console = Console()
    chosen = choose_tasks(plan.tasks, plan.split, plan.limit)
    harness = harness_of(plan.harness, plan.max_reply_tokens)
    rollouts = run(_play(console, plan, chosen, harness))
    all_failed = all(r.reward is None for r in rollouts)
    if not all_failed:
        console.print(success_table({plan.run: rollouts}, plan.samples))
    print_failures(console, rollouts)
    console.print(f"palestra show {plan.run_dir} --run {plan.run}", highlight=False, soft_wrap=True)
    if all_failed:
        raise typer.Exit(1)


async def _play(console: Console, plan: Plan, tasks: Sequence[Task], harness: Harness) -> list[Rollout]:
    sampling = Sampling(plan.temperature, max_tokens=plan.max_reply_tokens)
    spec = RunSpec(plan.run, plan.mode, plan.seed, sampling)
    with write_store(plan.run_dir) as store:
        _check_continues(plan, store)
        with console.status("starting the engine"):
            engine, rendering = await plan.model.start()
        at_once = plan.attempts_at_once
        async with local(engine, rendering, harness=harness, store=store, concurrency=at_once) as stack:
            _say_what_is_there(console, plan, store)
            return await watched(console, stack.runner, tasks, plan.samples, spec, plan.run)


def harness_of(name: str, max_reply_tokens: int) -> Harness:
    """Our loop, or a program that is installed. Raises RecipeError, which says what there is and what to type."""
    if name == TOOL_LOOP:
        return ToolLoop()
    return CommandLineHarness(find_recipe(name), max_reply_tokens=max_reply_tokens)


def _check_continues(plan: Plan, store: Store) -> None:
    directory = plan.run_dir / "settings"
    directory.mkdir(exist_ok=True)
    settings.keep(
        directory / f"{quote(plan.run, safe='')}.json",
        plan.settings,
        what=f"run {plan.run!r} in {plan.run_dir}",
        begun=bool(store.ids(run_id=plan.run)),
        free=(),
        way_out="use the same settings, another --run, or another --run-dir",
    )


def _say_what_is_there(console: Console, plan: Plan, store: Store) -> None:
    if there := len(store.ids(run_id=plan.run)):
        console.print(
            f"continuing run {plan.run}: {there} rollouts are there", highlight=False, soft_wrap=True
        )


async def watched(
    console: Console, runner: Runner, tasks: Sequence[Task], samples: int, spec: RunSpec, title: str
) -> list[Rollout]:
    """Run `samples` attempts at each task under a progress bar that counts successes and failures."""
    jobs = group_jobs(tasks, samples)
    ended: Counter[str] = Counter()
    with progress(console, title, len(jobs)) as advance:

        def on_done(rollout: Rollout) -> None:
            ended["solved"] += (rollout.reward or 0.0) >= 1.0
            ended["failed"] += rollout.failure is not None
            failed = f", {ended['failed']} failed" if ended["failed"] else ""
            advance(f"{ended['solved']} solved{failed}")

        trajectories = await runner.run(jobs, spec, on_done)
    return [t.rollout for t in trajectories]


def choose_tasks(name: str, split: Split, limit: int | None) -> list[Task]:
    """The first `limit` tasks of a split. Raises UsageError where that is nothing."""
    chosen = list(load_tasks(name, split))[:limit]
    if not chosen:
        raise UsageError(f"task set {name!r} has no tasks in split {split!r}: see palestra tasks show {name}")
    return chosen
