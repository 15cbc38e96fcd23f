"""`palestra show`: look at recorded rollouts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def show(
    store: Annotated[Path, typer.Argument(help="a run directory, or a store in it")],
    rollout_id: Annotated[str | None, typer.Argument(help="one rollout, in full")] = None,
    run: Annotated[str | None, typer.Option(help="only rollouts of this run, for example before")] = None,
    model: Annotated[Path | None, typer.Option(help="model directory, to show single tokens")] = None,
    limit: Annotated[int, typer.Option(help="rows of the list")] = 40,
) -> None:
    """Show what happened: a list of rollouts, or one with its tokens, log-probabilities, steps and advantages.

    Example: palestra show runs/demo
             palestra show runs/demo after/sql-tiny/test/0003/count/0
    """
    from palestra.trajectories.store import Store
    from palestra.viewer.terminal import show as show_trajectory
    from palestra.viewer.terminal import summary_table

    console = Console()
    root = store / "store" if (store / "store").is_dir() else store
    with Store.open(root) as opened:
        if rollout_id is None:
            ids = opened.ids(run_id=run) if run else opened.ids()
            console.print(summary_table(opened.rollout(i) for i in ids[-limit:]))
            console.print(
                f"{len(ids)} rollouts, the last {min(limit, len(ids))} shown; name one to see it in full"
            )
            return
        trajectory = opened.get(rollout_id)
        overlay = opened.overlay(rollout_id, "advantages")
    tokenizer = _decoder(model or _model_of(store))
    show_trajectory(
        trajectory, advantages=overlay[0] if overlay else None, console=console, tokenizer=tokenizer
    )


def _model_of(store: Path) -> Path | None:
    """The model directory that a run keeps beside its store."""
    return next((p.parent for p in sorted(store.glob("*/tokenizer.json"))), None)


def _decoder(model: Path | None):  # type: ignore[no-untyped-def]
    if model is None:
        return None
    from palestra.harness_proxy.rendering import Rendering

    return Rendering.load(model).decode
