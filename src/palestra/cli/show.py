"""`palestra show`: look at recorded rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from palestra.cli.errors import UsageError
from palestra.cli.options import checked_model, read_store

if TYPE_CHECKING:
    from palestra.trajectories.store import Store


def show(
    store: Annotated[Path, typer.Argument(metavar="DIR", help="a run directory, or a store in it")],
    rollout_id: Annotated[str | None, typer.Argument(metavar="ROLLOUT", help="one rollout, in full")] = None,
    run: Annotated[
        str | None, typer.Option(metavar="NAME", help="only rollouts of this run, for example before")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="model directory, to show single tokens")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="rows of the list")] = 40,
    compare: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="compare ROLLOUT with this ATIF trace of its harness")
    ] = None,
) -> None:
    """List rollouts, or show one in full.

    One rollout is shown with its tokens, log-probabilities, steps and advantages. It may be recording while you
    look.

    \b
    Examples:
      palestra show runs/demo
      palestra show runs/demo --run after --limit 10
      palestra show runs/demo after/sql-tiny/test/0003/count/0
      palestra show runs/by-hand session-1 --compare trajectory.json
    """
    console = Console()
    with read_store(store) as opened:
        if compare is not None:
            _compare(console, opened, rollout_id, compare)
        elif rollout_id is None:
            _list(console, opened, store, run, limit)
        else:
            _show(console, opened, rollout_id, model or _model_of(store))


def _list(console: Console, store: Store, where: Path, run: str | None, limit: int) -> None:
    from palestra.viewer.terminal import summary_table

    ids = store.ids(run_id=run) if run is not None else store.ids()
    if run is not None and not ids:
        runs = list(dict.fromkeys(r.run_id for r in store.rollouts()))
        raise UsageError(f"{where} has no run {run!r}; its runs are {', '.join(runs) or 'none'}")
    console.print(summary_table(store.rollout(i) for i in ids[-limit:]))
    shown = "" if len(ids) <= limit else f", the last {limit} shown"
    console.print(
        f"{len(ids)} rollouts{shown}; palestra show {where} ROLLOUT shows one in full", soft_wrap=True
    )


def _show(console: Console, store: Store, rollout_id: str, model: Path | None) -> None:
    from palestra.viewer.terminal import show as show_trajectory

    overlay = store.overlay(rollout_id, "advantages")
    show_trajectory(
        store.get(rollout_id),
        advantages=overlay[0] if overlay else None,
        console=console,
        tokenizer=_decoder(model) if model is not None else None,
    )


def _compare(console: Console, store: Store, rollout_id: str | None, path: Path) -> None:
    """Print differences; exit status 1 where there are any."""
    from palestra.trajectories.imports.atif import read_atif
    from palestra.trajectories.imports.compare import compare_traces

    if rollout_id is None:
        raise UsageError("--compare takes one rollout: palestra show DIR ROLLOUT --compare TRACE")
    found = compare_traces(store.get(rollout_id), read_atif(path))
    for difference in found:
        console.print(f"step {difference.step_id}: {difference.kind}", highlight=False)
        for name, text in (("recorded", difference.recorded), ("trace", difference.traced)):
            console.print(f"  {name:<8} {text}", markup=False, highlight=False, soft_wrap=True)
    print(f"{len(found)} differences" if found else "the trace and the recording say the same")
    if found:
        raise typer.Exit(1)


def _model_of(store: Path) -> Path | None:
    """The model directory that a run keeps beside its store."""
    return next((p.parent for p in sorted(store.glob("*/tokenizer.json"))), None)


def _decoder(model: Path) -> Callable[[Sequence[int]], str]:
    from palestra.harness_proxy.rendering import Rendering

    return Rendering.load(checked_model(model)).decode
