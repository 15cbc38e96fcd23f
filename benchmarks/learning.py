"""Estimators side by side: the same task, the same warm start per seed, the same number of rollouts.

    python benchmarks/learning.py                      five estimators, five seeds, a table
    python benchmarks/learning.py --json --seeds 2     what was measured, as one object

Each seed makes one warm start; every estimator trains from it and plays the same held-out tasks at the same steps.
What varies by chance varies by seed, so a seed is one observation: intervals are Student's over seeds, and
differences are taken from GRPO seed by seed. "curve" is the mean success over all looks after the first, which asks
how fast a policy learns; "end" asks where it arrives. A run that is complete is not run again, one that was
interrupted begins anew.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

import lakes
import web_lesson
from measure import Bench, machine
from palestra.cli.demo_run import Demo, DemoConfig
from palestra.evaluation.passk import collect, pass_at_k
from palestra.rollouts.loop import run
from palestra.rollouts.runner import RunSpec, group_jobs
from palestra.tasks.registry import load_tasks
from palestra.training.config import TrainConfig
from palestra.training.recipe import Recipe, training
from palestra.training.trainer import StepResult, Trainer
from palestra.trajectories.model import Sampling
from palestra.trajectories.store import Store

ESTIMATORS = ("grpo", "rloo", "mc_grpo", "gigpo", "hgpo")
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of Student's distribution with 1, 2, ... degrees of freedom."""

Numbers = Sequence[float]


@dataclass(frozen=True, slots=True)
class Budget:
    """What every run gets."""

    steps: int = 20
    groups_per_step: int = 8
    group_size: int = 8
    look_every: int = 5
    looked_at: int = 200
    """Held-out tasks played at each look."""
    concurrency: int = 256
    """Episodes at once."""


QUICK = {"steps": 2, "groups_per_step": 2, "group_size": 4, "look_every": 1, "looked_at": 20}


@dataclass(frozen=True, slots=True)
class Lesson:
    """A task to learn."""

    tasks: str
    """Name of the task set; its test split is what is looked at."""
    warm_start: Callable[[Path, int, Console], Awaitable[Path]]
    """Makes the policy of a seed in a directory, and says where it is. Called again it finds it there."""
    budget: Budget = field(default_factory=Budget)


async def sql_tiny(directory: Path, seed: int, console: Console) -> Path:
    """The warm start of `palestra demo`."""
    directory.mkdir(parents=True, exist_ok=True)
    with Store.open(directory / "store", write=True) as store:
        return await Demo(directory, DemoConfig.make(seed=seed), console).prepare(store)


LESSONS: Mapping[str, Lesson] = {
    "sql-tiny": Lesson("sql-tiny", sql_tiny),
    "lakes": Lesson("lakes:load", lakes.prepare, Budget(steps=10, look_every=5, looked_at=100)),
    "web": Lesson(
        "web_lesson:load",
        web_lesson.prepare,
        Budget(12, 8, 8, look_every=3, looked_at=96, concurrency=web_lesson.CONCURRENCY),
    ),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One estimator on one seed."""

    estimator: str
    seed: int
    success: Numbers
    """At each look, from step 0."""
    turns: float
    """Per episode, at the last look."""

    @property
    def curve(self) -> float:
        """Mean success over the looks after the first."""
        return mean(self.success[1:])

    @property
    def end(self) -> float:
        """Success at the last look."""
        return self.success[-1]


def main() -> None:
    """Run, or continue, all combinations and print the table."""
    bench = Bench(__doc__ or "", example="python benchmarks/learning.py --seeds 5")
    add = bench.parser.add_argument
    add("--task", choices=LESSONS, default="sql-tiny")
    add("--seeds", type=int, default=5, help="seeds 0, 1, ... (default 5)")
    add("--estimators", nargs="+", default=list(ESTIMATORS), help="the first one is compared with")
    add("--dir", type=Path, default=Path("runs/learning"), help="where the runs are kept")
    add("--markdown", action="store_true", help="print the table as docs/results.md has it")
    args = bench.parse()
    directory = args.dir / (f"{args.task}-quick" if args.quick else args.task)
    budget = replace(LESSONS[args.task].budget, **QUICK) if args.quick else LESSONS[args.task].budget
    console = Console(stderr=args.json or args.markdown)
    runs = [
        trained(directory, LESSONS[args.task], estimator, seed, budget, console)
        for seed in range(min(args.seeds, 2) if args.quick else args.seeds)
        for estimator in args.estimators
    ]
    if args.json:
        sys.stdout.write(orjson.dumps(figures(runs)).decode() + "\n")
    elif args.markdown:
        print(markdown(runs, budget))
    else:
        console.print(table(runs, budget))


def trained(
    directory: Path, lesson: Lesson, estimator: str, seed: int, budget: Budget, console: Console
) -> Run:
    """One run, or what it came to where it was complete before."""
    run_dir = directory / f"{estimator}-{seed}"
    result = run_dir / "curve.json"
    if not result.exists():
        shutil.rmtree(run_dir, ignore_errors=True)
        console.rule(f"{estimator}, seed {seed}")
        learned = run(_learn(lesson, directory / f"warm-{seed}", run_dir, estimator, seed, budget, console))
        result.write_bytes(orjson.dumps(learned))
    return Run(estimator, seed, **orjson.loads(result.read_bytes()))


async def _learn(
    lesson: Lesson, warm_dir: Path, run_dir: Path, estimator: str, seed: int, budget: Budget, console: Console
) -> dict[str, Any]:
    model = await lesson.warm_start(warm_dir, seed, console)
    config = TrainConfig(
        steps=budget.steps,
        groups_per_step=budget.groups_per_step,
        group_size=budget.group_size,
        estimator=estimator,
        seed=seed,
    )
    recipe = Recipe(
        model=model, tasks=lesson.tasks, run_dir=run_dir, train=config, concurrency=budget.concurrency
    )
    looks: list[tuple[float, float]] = []
    async with training(recipe) as trainer:

        async def on_step(result: StepResult) -> None:
            if result.step % budget.look_every == 0:
                looks.append(await _look(trainer, lesson, budget, result.step))
                console.print(f"step {result.step}: {looks[-1][0]:.1%} in {looks[-1][1]:.2f} turns")

        looks.append(await _look(trainer, lesson, budget, 0))
        await trainer.train(on_step)
    return {"success": [success for success, _ in looks], "turns": looks[-1][1]}


async def _look(trainer: Trainer, lesson: Lesson, budget: Budget, step: int) -> tuple[float, float]:
    """(success, turns per episode) on held-out tasks, one attempt each."""
    tasks = list(load_tasks(lesson.tasks, "test"))[: budget.looked_at]
    sampling = Sampling(trainer.config.temperature, max_tokens=trainer.config.max_reply_tokens)
    spec = RunSpec(f"look-{step:03d}", "eval", 0, sampling)
    played = await trainer.runner.run(group_jobs(tasks, 1), spec)
    return pass_at_k(collect(t.rollout for t in played)).value, mean(len(t.steps) for t in played)


def interval(values: Numbers) -> tuple[float, float, float]:
    """(mean, low, high): 95 % by Student's distribution; nan bounds for a single value."""
    if len(values) < 2:
        return values[0], float("nan"), float("nan")
    half = T975[len(values) - 2] * stdev(values) / sqrt(len(values))
    return mean(values), mean(values) - half, mean(values) + half


def gains(runs: Sequence[Run], estimator: str, what: str) -> tuple[float, float, float]:
    """Difference from the first estimator, seed by seed."""
    first = {r.seed: getattr(r, what) for r in runs if r.estimator == runs[0].estimator}
    return interval([getattr(r, what) - first[r.seed] for r in runs if r.estimator == estimator])


def figures(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything as plain numbers."""
    names = list(dict.fromkeys(r.estimator for r in runs))
    by_name = {name: [r for r in runs if r.estimator == name] for name in names}
    return {
        "machine": machine(),
        "runs": [{"estimator": r.estimator, "seed": r.seed, "success": r.success} for r in runs],
        "curve": {name: interval([r.curve for r in of]) for name, of in by_name.items()},
        "end": {name: interval([r.end for r in of]) for name, of in by_name.items()},
        "curve_gain": {name: gains(runs, name, "curve") for name in names[1:]},
        "end_gain": {name: gains(runs, name, "end") for name in names[1:]},
    }


def rows(runs: Sequence[Run], budget: Budget) -> list[list[str]]:
    """A heading, and a row per estimator."""
    looks = [f"step {s}" for s in range(0, budget.steps + 1, budget.look_every)]
    names = list(dict.fromkeys(r.estimator for r in runs))
    over = f"over {names[0]}"
    return [
        ["estimator", *looks, "curve", over, "end", over, "turns"],
        *[_row(runs, name, first=name == names[0]) for name in names],
    ]


def _row(runs: Sequence[Run], name: str, *, first: bool) -> list[str]:
    of = [r for r in runs if r.estimator == name]
    looks = [f"{mean(at):.1%}" for at in zip(*[r.success for r in of], strict=True)]
    over = ["", ""] if first else [_points(gains(runs, name, what)) for what in ("curve", "end")]
    curve, end = _share(interval([r.curve for r in of])), _share(interval([r.end for r in of]))
    return [name, *looks, curve, over[0], end, over[1], f"{mean(r.turns for r in of):.2f}"]


def table(runs: Sequence[Run], budget: Budget) -> Table:
    """For a terminal."""
    heading, *body = rows(runs, budget)
    out = Table(*heading, box=None)
    for row in body:
        out.add_row(*row)
    return out


def markdown(runs: Sequence[Run], budget: Budget) -> str:
    """For a document."""
    heading, *body = rows(runs, budget)
    lines = [heading, ["---"] * len(heading), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _share(value: tuple[float, float, float]) -> str:
    return f"{value[0]:.1%} ({value[1]:.1%} to {value[2]:.1%})"


def _points(value: tuple[float, float, float]) -> str:
    return " ".join((f"{100 * value[0]:+.1f}", f"({100 * value[1]:+.1f} to {100 * value[2]:+.1f})"))


if __name__ == "__main__":
    main()
