"""`palestra`: the commands, and the one place in which an expected error becomes a line instead of a traceback.

Exit status: 0 it went well, 1 it ran and found problems, 2 it could not be done as asked, 130 interrupted. An
unexpected exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from palestra import __version__
from palestra.cli import (
    demo,
    drift,
    engine,
    env,
    evaluate,
    export,
    harness,
    proxy,
    rollout,
    sandbox,
    search,
    show,
    tasks,
    train,
)

TRAIN_EXTRA = ("torch", "transformers", "safetensors", "huggingface_hub")
"""Modules of the extra [train]."""

app = typer.Typer(
    name="palestra",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.command("demo")(demo.demo)
app.add_typer(tasks.app, name="tasks")
app.add_typer(env.app, name="env")
app.add_typer(search.app, name="search")
app.command("rollout")(rollout.rollout)
app.add_typer(evaluate.app, name="eval")
app.command("train")(train.train)
app.command("drift")(drift.drift)
app.command("show")(show.show)
app.command("export")(export.export)
app.command("proxy")(proxy.proxy)
app.add_typer(harness.app, name="harness")
app.add_typer(engine.app, name="engine")
app.add_typer(sandbox.app, name="sandbox")


def _version(asked: bool) -> None:
    if asked:
        print(f"palestra {__version__}")
        raise typer.Exit


@app.callback()
def _palestra(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """A gym in which language-model agents learn by acting.

    \b
    First try:
      palestra demo                 a policy learns to query databases, in minutes, on two CPU cores
      palestra show runs/demo       what it did, token by token
      palestra tasks list           what else there is to solve
    """


def main() -> None:
    """Run the command line."""
    try:
        app()
    except SystemExit as ended:
        if ended.code == 130:
            print("interrupted; what was committed stays, the same command continues", file=sys.stderr)
        raise
    except ImportError as error:
        if (missing := _missing_extra(error)) is None:
            raise
        _fail(f"{missing} is not installed: pip install 'palestra[train]'", 2)
    except Exception as error:
        if (status := _status(error)) is None:
            raise
        _fail(str(error), status)


def _fail(message: str, status: int) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(status)


def _missing_extra(error: BaseException | None) -> str | None:
    """The module of [train] that could not be imported, if that is what happened."""
    while error is not None:
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] in TRAIN_EXTRA:
            return error.name
        error = error.__cause__
    return None


def _status(error: Exception) -> int | None:
    """The exit status of an error that says what the user can do; None for a bug."""
    from palestra.cli.errors import UsageError
    from palestra.envs.errors import EnvError
    from palestra.evaluation.errors import EvaluationError
    from palestra.harness_proxy.engines.base import EngineError
    from palestra.harness_proxy.errors import ProxyError
    from palestra.rollouts.errors import RecipeError, ResumeError, RolloutError
    from palestra.tasks.errors import TaskError
    from palestra.training.errors import AllFailedError, DivergedError, TrainingError, UnfaithfulError
    from palestra.trajectories.errors import TrajectoryError

    if isinstance(error, AllFailedError | DivergedError | UnfaithfulError):
        return 1
    expected = UsageError, EnvError, EvaluationError, EngineError, ProxyError, TaskError
    ours = RecipeError, ResumeError, RolloutError, TrainingError, TrajectoryError
    return 2 if isinstance(error, (*expected, *ours)) else None
