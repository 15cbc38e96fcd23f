"""Rolling out one model on one task set, as several commands do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from rich.console import Console

from palestra.cli.errors import UsageError
from palestra.cli.progress import progress
from palestra.harness_proxy.engines.base import Engine
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.local import local
from palestra.rollouts.runner import Runner, RunSpec, group_jobs
from palestra.tasks.registry import load_tasks
from palestra.tasks.task import SPLITS, Split, Task
from palestra.trajectories.model import Mode, Rollout, Sampling
from palestra.trajectories.store import Store


async def play(
    console: Console,
    *,
    tasks: str,
    split: str,
    limit: int | None,
    samples: int,
    engine: Callable[[], Engine],
    model: Path,
    store_dir: Path,
    run_id: str,
    mode: str,
    seed: int,
    temperature: float,
    max_reply_tokens: int,
) -> list[Rollout]:
    """Play the tasks and return their rollouts, those of earlier calls included. Raises UsageError."""
    chosen = choose_tasks(tasks, split, limit)
    if mode not in ("train", "eval"):
        raise UsageError(f"mode is train or eval, not {mode!r}")
    sampling = Sampling(temperature, max_tokens=max_reply_tokens)
    spec = RunSpec(run_id, cast(Mode, mode), seed, sampling)
    with Store.open(store_dir, write=True) as store:
        async with local(engine(), Rendering.load(model), store=store) as stack:
            return await watched(console, stack.runner, chosen, samples, spec, "rollouts")


async def watched(
    console: Console, runner: Runner, tasks: Sequence[Task], samples: int, spec: RunSpec, title: str
) -> list[Rollout]:
    """Run `samples` attempts at each task under a progress bar that counts successes and failures."""
    jobs = group_jobs(tasks, samples)
    done: list[Rollout] = []
    with progress(console, title, len(jobs)) as advance:

        def on_done(rollout: Rollout) -> None:
            done.append(rollout)
            solved = sum((r.reward or 0.0) >= 1.0 for r in done)
            failed = sum(r.failure is not None for r in done)
            advance(f"{solved} solved" + (f", {failed} failed" if failed else ""))

        trajectories = await runner.run(jobs, spec, on_done)
    return [t.rollout for t in trajectories]


def choose_tasks(name: str, split: str, limit: int | None) -> list[Task]:
    """The first `limit` tasks of a split. Raises UsageError where that is nothing."""
    if split not in SPLITS:
        raise UsageError(f"there is no split {split!r}; the splits are {', '.join(SPLITS)}")
    chosen = list(load_tasks(name, cast(Split, split)))[:limit]
    if not chosen:
        raise UsageError(f"task set {name!r} has no tasks in split {split!r}: see palestra tasks show {name}")
    return chosen
