"""`palestra demo`: a policy learns to query databases it has never seen, on two CPU cores, in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def demo(
    run_dir: Annotated[Path, typer.Option("--run-dir", help="where everything is kept")] = Path("runs/demo"),
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="start over, or continue what is there")
    ] = False,
    seed: Annotated[int, typer.Option(help="decides weights, demonstrations, tasks and samples")] = 0,
    estimator: Annotated[str, typer.Option(help="gigpo or grpo")] = "gigpo",
    steps: Annotated[int | None, typer.Option(help="training steps, default 40")] = None,
    deterministic: Annotated[bool, typer.Option(help="the same bits on every run; much slower")] = False,
) -> None:
    """Train a policy of 0.3 M parameters from random weights to a working SQL agent, and report how it went.

    A short warm start on careless demonstrations, then reinforcement learning on its own rollouts through the
    proxy; held-out databases before and after. Interrupt it at any time and run it again to continue.

    \b
    Example: palestra demo
             palestra demo --fresh --seed 1 --run-dir runs/demo-1
    """
    from palestra.cli.demo_run import Demo, DemoConfig, forget
    from palestra.cli.errors import UsageError
    from palestra.rollouts.loop import run
    from palestra.training.advantages import estimators

    if estimator not in estimators:
        raise UsageError(f"there is no estimator {estimator!r}; there are {', '.join(estimators)}")
    config = DemoConfig.make(seed=seed, estimator=estimator, steps=steps, deterministic=deterministic)
    if fresh:
        forget(run_dir)
    run(Demo(run_dir, config, Console()).run())
