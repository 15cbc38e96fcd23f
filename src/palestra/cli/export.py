"""`palestra export`: recorded rollouts in the forms that other trainers and tools read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from palestra.cli.errors import UsageError
from palestra.cli.options import Mode, read_store
from palestra.cli.progress import progress

if TYPE_CHECKING:
    from palestra.trajectories.exports.formats import Exported

FormatName = Literal["atif", "slime", "verl", "trl", "trl-sft", "parquet", "jsonl"]


def export(
    store: Annotated[Path, typer.Argument(metavar="DIR", help="a run directory, or a store in it")],
    format: Annotated[FormatName, typer.Option("--format", help="the form to write, see above")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="PATH", help="file or directory to write")],
    run: Annotated[str | None, typer.Option(metavar="NAME", help="only rollouts of this run")] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="only this mode  [default: train for slime, verl, trl; else both]")
    ] = None,
    min_reward: Annotated[
        float | None, typer.Option(metavar="R", help="only rollouts with at least this reward")
    ] = None,
    unscored: Annotated[
        bool, typer.Option("--unscored", help="trl-sft: also rollouts without a valid score")
    ] = False,
) -> None:
    """Write recorded rollouts in a form that another trainer or tool reads.

    \b
      atif     a directory with an ATIF 1.8 document per rollout, token ids and log-probabilities included
      parquet  a directory of tables (rollouts, samples, calls, steps); needs pip install 'palestra[export]'
      jsonl    one JSON object per rollout with everything on record
      slime    one Sample per line      verl     one AgentLoopOutput per line
      trl      one GRPO row per line    trl-sft  one conversation per line, prompt and completion

    slime, verl and trl hold one line per branch to train: each sampled token carries loss at most once, with
    the log-probability it was sampled with. A rollout without a valid score is never a reward of 0: these three
    and trl-sft leave it out, the others give it the reward null.

    Interrupted, the same command goes on. A file has its name only once it is complete. Given again on a
    finished directory, the command adds the rollouts that were recorded since.

    \b
    Examples:
      palestra export runs/demo --format parquet -o demo-tables
      palestra export runs/demo --format trl -o demo-grpo.jsonl --run train
      palestra export runs/by-hand --format trl-sft -o demonstrations.jsonl --unscored
    """
    from palestra.trajectories.exports.formats import Selection
    from palestra.trajectories.exports.formats import export as write

    chosen = Selection(run, mode or _usual_mode(format), min_reward, unscored)
    with read_store(store) as opened, _pyarrow():
        total = len(opened.ids(run_id=run) if run is not None else opened.ids())
        with progress(Console(stderr=True), f"export {format}", total) as advance:
            exported = write(opened, format, out, chosen, advance)
    print(_summary(exported, out))


def _usual_mode(name: str) -> Mode | None:
    """Rollouts that measure a benchmark do not slip into a training set unasked."""
    return "train" if name in ("slime", "verl", "trl") else None


@contextmanager
def _pyarrow() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise UsageError("pyarrow is not installed: pip install 'palestra[export]'") from error


def _summary(exported: Exported, out: Path) -> str:
    left = "; ".join(f"{count:,} with {reason}" for reason, count in exported.left_out.items())
    counts = f"{exported.rows:,} rows of {exported.rollouts:,} rollouts in {out}"
    return f"{counts}; left out: {left}" if left else counts
