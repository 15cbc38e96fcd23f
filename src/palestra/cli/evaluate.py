"""`palestra eval`: how good is a model, and is another one better?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from palestra.cli.errors import UsageError
from palestra.cli.options import (
    Concurrency,
    EngineModel,
    EngineUrl,
    HarnessName,
    Limit,
    MaxReplyTokens,
    ModelName,
    RunDir,
    Samples,
    Seed,
    SplitOption,
    TaskSetName,
    Temperature,
    UpstreamKeyEnv,
    UpstreamUrl,
    read_store,
)

if TYPE_CHECKING:
    from palestra.evaluation.compare import Comparison
    from palestra.evaluation.passk import Outcomes

app = typer.Typer(
    help="Evaluate a model on a split; compare two runs.", no_args_is_help=True, rich_markup_mode=None
)

RUN_HELP = "DIR, or DIR:RUN for one run of its store"


@app.command()
def run(
    tasks: TaskSetName,
    model: ModelName,
    run_dir: RunDir,
    run: Annotated[str, typer.Option(metavar="NAME", help="name of the run within the store")] = "eval",
    split: SplitOption = "test",
    limit: Limit = None,
    samples: Samples = 1,
    temperature: Temperature = 1.0,
    max_reply_tokens: MaxReplyTokens = 256,
    seed: Seed = 0,
    engine_url: EngineUrl = None,
    engine_model: EngineModel = None,
    upstream: UpstreamUrl = None,
    upstream_key_env: UpstreamKeyEnv = None,
    harness: HarnessName = "tool-loop",
    concurrency: Concurrency = None,
) -> None:
    """Play a split and print pass@k with 95 % intervals.

    Run it again to continue. Exit status 1 when every rollout failed. Who plays is said by --harness, as in
    palestra rollout.

    \b
    Examples:
      palestra eval run sql-tiny --model runs/demo/warm --run-dir runs/eval --run warm --samples 4
      palestra eval run swe-tiny --harness codex --model qwen3-8b --engine-url http://gpu:8000 --run-dir runs/swe
      palestra eval run sql-gym --upstream https://api.openai.com/v1 --upstream-key-env KEY --model M --run-dir r/x
      palestra eval compare runs/eval:warm runs/eval:trained
    """
    from palestra.cli.model_choice import ModelChoice
    from palestra.cli.play import Plan, play

    play(
        Plan(
            tasks=tasks,
            split=split,
            limit=limit,
            samples=samples,
            model=ModelChoice.of(model, engine_url, engine_model, upstream, upstream_key_env),
            run_dir=run_dir,
            run=run,
            mode="eval",
            seed=seed,
            temperature=temperature,
            max_reply_tokens=max_reply_tokens,
            harness=harness,
            concurrency=concurrency,
        )
    )


@app.command()
def compare(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help=RUN_HELP)],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="the same for the other run")],
) -> None:
    """Compare two runs task by task.

    Prints the difference with its interval and which tasks changed, over the tasks that both played.

    \b
    Example:
      palestra eval compare runs/demo:before runs/demo:after
    """
    from palestra.evaluation.compare import compare as compare_runs

    _print(Console(), compare_runs(_outcomes(before), _outcomes(after)))


def _print(console: Console, result: Comparison) -> None:
    from palestra.cli.tables import percent

    span = f"{100 * result.low:+.1f} to {100 * result.high:+.1f}"
    lines = [
        f"before      {percent(result.before)}  {_counts(result.before.tasks, result.before.failed)}",
        f"after       {percent(result.after)}  {_counts(result.after.tasks, result.after.failed)}",
        f"difference  {100 * result.difference:+.1f} points ({span}, 95 %, paired by task)",
        f"tasks       {len(result.improved)} improved, {len(result.worsened)} worsened",
    ]
    if result.p_value is not None:
        lines.append(f"McNemar     p = {result.p_value:.2g} (exact)")
    if result.only_before or result.only_after:
        lines.append(
            f"not shared  {len(result.only_before)} only before, {len(result.only_after)} only after"
        )
    for name, tasks in (("improved", result.improved), ("worsened", result.worsened)):
        lines += [f"  {name}  {task}" for task in tasks[:MAX_TASKS]]
        lines += [f"  {name}  and {len(tasks) - MAX_TASKS} more"] if len(tasks) > MAX_TASKS else []
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


MAX_TASKS = 5
"""Tasks that are named in each direction."""


def _counts(tasks: int, failed: int) -> str:
    return f"of {tasks} tasks" + (f", {failed} rollouts failed" if failed else "")


def _outcomes(where: str) -> Outcomes:
    """The outcomes of DIR or DIR:RUN; of a directory alone only where it holds a single run."""
    from palestra.evaluation.passk import collect
    from palestra.rollouts.job import LOST_RUN

    directory, run_id = _split(where)
    with read_store(directory) as store:
        rollouts = [r for r in store.rollouts() if not r.run_id.endswith(LOST_RUN)]
    runs = list(dict.fromkeys(r.run_id for r in rollouts))
    if run_id is None and len(runs) == 1:
        run_id = runs[0]
    if run_id not in runs:
        asked = f"has no run {run_id!r}" if run_id is not None else f"has {len(runs)} runs"
        names = ", ".join(f"{directory}:{r}" for r in runs[:MAX_RUNS])
        raise UsageError(f"{directory} {asked}; name one of: {names or 'none, it is empty'}")
    return collect(r for r in rollouts if r.run_id == run_id)


MAX_RUNS = 20
"""Runs that are named in a message."""


def _split(where: str) -> tuple[Path, str | None]:
    """Directory and run. A directory whose own name has a colon is found where it exists."""
    if Path(where).is_dir() or ":" not in where:
        return Path(where), None
    directory, _, run_id = where.partition(":")
    return Path(directory), run_id
