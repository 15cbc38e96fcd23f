"""`palestra`: the commands, and the one place in which a user's mistake becomes one line instead of a traceback."""

from __future__ import annotations

import sys

import typer

from palestra.cli import demo, engine, evaluate, proxy, rollout, show, tasks, train

app = typer.Typer(
    name="palestra",
    help="A gym in which language-model agents learn by acting.\n\nFirst try: palestra demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.add_typer(tasks.app, name="tasks")
app.command("rollout")(rollout.rollout)
app.command("train")(train.train)
app.add_typer(evaluate.app, name="eval")
app.command("show")(show.show)
app.command("proxy")(proxy.proxy)
app.add_typer(engine.app, name="engine")


def main() -> None:
    """Run the command line. Mistakes of the user exit with status 2, an interrupt with 130."""
    try:
        app()
    except KeyboardInterrupt:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if not isinstance(error, _mistakes()):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def _mistakes() -> tuple[type[Exception], ...]:
    """Errors that say what the user can do; everything else is a bug and keeps its traceback."""
    from palestra.cli.errors import UsageError
    from palestra.envs.errors import EnvError
    from palestra.evaluation.errors import EvaluationError
    from palestra.harness_proxy.engines.base import EngineError
    from palestra.harness_proxy.errors import ProxyError
    from palestra.tasks.errors import TaskError
    from palestra.training.errors import TrainingError
    from palestra.trajectories.errors import TrajectoryError

    return (
        UsageError,
        EnvError,
        EvaluationError,
        EngineError,
        ProxyError,
        TaskError,
        TrainingError,
        TrajectoryError,
    )
