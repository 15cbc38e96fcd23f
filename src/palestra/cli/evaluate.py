"""`palestra eval`: how good is a model, and is another one better?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from palestra.cli.errors import UsageError
from palestra.cli.options import EngineUrl, ModelDir, RunDir, checked_model, make_engine

app = typer.Typer(
    help="Evaluate a model on a split; compare two runs.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def run(
    tasks: Annotated[
        str, typer.Argument(help="task set: a registered name, a .jsonl file, or module:function")
    ],
    model: ModelDir,
    run_dir: RunDir,
    name: Annotated[str, typer.Option(help="name of the run within the store")] = "eval",
    split: Annotated[str, typer.Option(help="train, dev or test")] = "test",
    limit: Annotated[int | None, typer.Option(help="only the first tasks of the split")] = None,
    samples: Annotated[int, typer.Option(help="attempts at each task; gives pass@k")] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 1.0,
    max_reply_tokens: Annotated[int, typer.Option(help="bound on one reply")] = 256,
    seed: Annotated[int, typer.Option(help="decides everything that is drawn")] = 0,
    engine_url: EngineUrl = None,
) -> None:
    """Play a split and print pass@k with 95 % intervals. Run again to continue.

    Example: palestra eval run sql-tiny --model runs/demo/warm --run-dir runs/eval --samples 4
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
            store_dir=run_dir / "store",
            run_id=name,
            mode="eval",
            seed=seed,
            temperature=temperature,
            max_reply_tokens=max_reply_tokens,
        )
    )
    console.print(success_table({name: rollouts}, samples))


@app.command()
def compare(
    before: Annotated[str, typer.Argument(help="RUN_DIR, or RUN_DIR:run for one run of its store")],
    after: Annotated[str, typer.Argument(help="the same for the other run")],
) -> None:
    """Compare two runs task by task: difference, interval, and which tasks changed.

    Example: palestra eval compare runs/demo:before runs/demo:after
    """
    from palestra.cli.tables import percent
    from palestra.evaluation.compare import compare as compare_runs

    console = Console()
    result = compare_runs(_outcomes(before), _outcomes(after))
    console.print(f"before  {percent(result.before)}   after  {percent(result.after)}", highlight=False)
    span = f"{100 * result.low:+.1f} to {100 * result.high:+.1f}"
    console.print(
        f"difference {100 * result.difference:+.1f} points ({span}, paired by task)", highlight=False
    )
    if result.p_value is not None:
        console.print(f"exact McNemar p = {result.p_value:.2g}", highlight=False)
    console.print(f"{len(result.improved)} tasks improved, {len(result.worsened)} worsened", highlight=False)
    if result.only_before or result.only_after:
        console.print(
            f"not shared: {len(result.only_before)} only before, {len(result.only_after)} only after"
        )


def _outcomes(where: str):  # type: ignore[no-untyped-def]
    from palestra.evaluation.passk import collect
    from palestra.trajectories.store import Store

    directory, _, run_id = where.partition(":")
    root = Path(directory)
    with Store.open(root / "store" if (root / "store").is_dir() else root) as store:
        rollouts = list(store.rollouts(run_id=run_id) if run_id else store.rollouts())
    if not rollouts:
        raise UsageError(f"{where} has no rollouts: palestra show {directory} lists the runs there")
    return collect(rollouts)
