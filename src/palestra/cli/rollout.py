"""`palestra rollout`: have a model play tasks, and keep everything that happened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from palestra.cli.options import EngineUrl, ModelDir, RunDir, checked_model, make_engine

Samples = Annotated[int, typer.Option(help="attempts at each task")]


def rollout(
    tasks: Annotated[
        str, typer.Argument(help="task set: a registered name, a .jsonl file, or module:function")
    ],
    model: ModelDir,
    run_dir: RunDir,
    split: Annotated[str, typer.Option(help="train, dev or test")] = "test",
    limit: Annotated[int | None, typer.Option(help="only the first tasks of the split")] = None,
    samples: Samples = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 1.0,
    max_reply_tokens: Annotated[int, typer.Option(help="bound on one reply")] = 256,
    seed: Annotated[int, typer.Option(help="decides everything that is drawn")] = 0,
    mode: Annotated[str, typer.Option(help="train (tokens required) or eval")] = "eval",
    run: Annotated[str, typer.Option(help="name of the run within the store")] = "rollouts",
    engine_url: EngineUrl = None,
) -> None:
    """Roll out a model on a task set and show how it did. Run again to continue.

    Example: palestra rollout sql-tiny --model runs/demo/warm --run-dir runs/try --limit 50 --samples 4
    """
    from palestra.cli.play import play
    from palestra.cli.tables import success_table
    from palestra.rollouts import loop

    console = Console()
    rollouts = loop.run(
        play(
            console,
            tasks=tasks,
            split=split,
            limit=limit,
            samples=samples,
            engine=lambda: make_engine(model, engine_url),
            model=checked_model(model),
            store_dir=Path(run_dir) / "store",
            run_id=run,
            mode=mode,
            seed=seed,
            temperature=temperature,
            max_reply_tokens=max_reply_tokens,
        )
    )
    console.print(success_table({run: rollouts}, samples))
    console.print(f"palestra show {run_dir}   shows them one by one")
