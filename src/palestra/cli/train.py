"""`palestra train`: reinforcement learning from a small TOML file."""

from __future__ import annotations

import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from palestra.cli.errors import UsageError

if TYPE_CHECKING:
    from palestra.training.recipe import Recipe
    from palestra.training.sharded import Team


def train(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="TOML file, see examples/sql_tiny.toml")],
    fresh: Annotated[
        bool, typer.Option("--fresh", help="delete the store and the checkpoints of the run and start over")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="continue the run where it was; so it does without this, too")
    ] = False,
) -> None:
    """Train a policy as a TOML file says.

    Run it again to continue after an interrupt, or with more steps to go on after the end. Each step is one
    line; run_dir/checkpoints/NNNNNN is a model directory that every other command takes. On several GPUs:
    torchrun --nproc-per-node 8 --no-python palestra train RECIPE

    \b
    Examples:
      palestra train examples/sql_tiny.toml
      palestra train examples/sql_tiny.toml --resume
      palestra eval run sql-tiny --model runs/sql-tiny/checkpoints/000020 --run-dir runs/eval
    """
    from palestra.cli.recipe_file import read_recipe
    from palestra.rollouts.loop import run
    from palestra.training.recipe import follow
    from palestra.training.sharded import Team

    if fresh and resume:
        raise UsageError("--fresh starts over and --resume continues: give one of them")
    read = read_recipe(recipe)
    team = Team.from_environment()
    if not team.leads:
        return follow(read, team)
    with team.leading():
        if fresh:
            _remove(read)
        run(_train(read, recipe, Console(), team))


async def _train(recipe: Recipe, path: Path, console: Console, team: Team) -> None:
    from palestra.cli.options import loading, write_store
    from palestra.cli.play import choose_tasks
    from palestra.training.logs import logging_to
    from palestra.training.recipe import training
    from palestra.training.trainer import StepResult

    async def on_step(result: StepResult) -> None:
        write(result)
        console.print(step_line(result, recipe.train.steps), highlight=False, soft_wrap=True)
        if result.token_budget < recipe.train.token_budget:
            console.print(
                f"  out of memory: micro-batches are of {result.token_budget} tokens now", highlight=False
            )

    choose_tasks(recipe.tasks, recipe.split, None)
    async with AsyncExitStack() as stack:
        store = stack.enter_context(write_store(recipe.run_dir))
        _check_continues(recipe, path)
        with console.status("starting the engine"), loading(recipe.model):
            trainer = await stack.enter_async_context(training(recipe, store, team))
        if trainer.step:
            console.print(f"continuing {recipe.run_dir} after step {trainer.step}", highlight=False)
        write = stack.enter_context(logging_to(recipe.log, recipe.run_dir, trainer.step))
        await trainer.train(on_step)
        console.print(f"done: {trainer.checkpoint} holds the weights", highlight=False, soft_wrap=True)


def _check_continues(recipe: Recipe, path: Path) -> None:
    from palestra.cli import settings
    from palestra.cli.recipe_file import FREE

    settings.keep(
        recipe.run_dir / "recipe.json",
        recipe.model_dump(mode="json"),
        what=f"the training in {recipe.run_dir}",
        begun=any((recipe.run_dir / "checkpoints").glob("[0-9]*")),
        free=FREE,
        way_out=f"change {path} back, give another run_dir in it, or start over with --fresh",
    )


def _remove(recipe: Recipe) -> None:
    """Remove what training made, and nothing else.

    Raises UsageError where the model is among it, StoreLockedError where another process is at work.
    """
    from palestra.trajectories.layout import locked

    run_dir = recipe.run_dir
    if (run_dir / "checkpoints").resolve() in recipe.model.resolve().parents:
        raise UsageError(
            f"--fresh would delete the model that the run begins with, {recipe.model}: copy it first"
        )
    if (run_dir / "store").is_dir():
        with locked(run_dir / "store"):
            shutil.rmtree(run_dir / "store")
    if (run_dir / "checkpoints").is_dir():
        shutil.rmtree(run_dir / "checkpoints")
    (run_dir / "recipe.json").unlink(missing_ok=True)


def step_line(r: Any, total: int) -> str:
    """One training step on one line."""
    failed = f"  failed {r.failed}" if r.failed else ""
    rate = r.sampled_tokens / max(r.rollout_s, 1e-9)
    return (
        f"step {r.step:>3}/{total}  success {r.success:5.1%}  turns {r.turns:.2f}  invalid {r.invalid:5.1%}  "
        f"entropy {r.entropy:.3f}  grad {r.grad_norm:.2f}  gap {r.logprob_gap:.0e}  "
        f"{rate:,.0f} tok/s  {r.rollout_s + r.update_s:.1f} s{failed}"
    )
