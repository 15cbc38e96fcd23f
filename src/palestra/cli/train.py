"""`palestra train`: reinforcement learning from a small TOML file."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from palestra.cli.errors import UsageError

if TYPE_CHECKING:
    from palestra.training.recipe import Recipe


def train(
    config: Annotated[Path, typer.Argument(help="TOML file, see examples/sql_tiny.toml")],
    fresh: Annotated[bool, typer.Option("--fresh", help="start over; otherwise the run continues")] = False,
) -> None:
    """Train a policy as a TOML file says; run again to continue after an interrupt.

    Example: palestra train examples/sql_tiny.toml
    """
    from palestra.rollouts import loop

    recipe = read_recipe(config)
    if fresh:
        shutil.rmtree(recipe.run_dir, ignore_errors=True)
    loop.run(_train(recipe, Console()))


def read_recipe(path: Path) -> Recipe:
    """The recipe in a TOML file. Raises UsageError naming the key that does not fit."""
    import pydantic

    from palestra.training.recipe import Recipe

    try:
        parsed: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        return Recipe.model_validate(parsed)
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    except pydantic.ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg'].lower()}" for e in error.errors())
        raise UsageError(f"{path}: {problems}") from error


async def _train(recipe: Recipe, console: Console) -> None:
    from palestra.training.recipe import training
    from palestra.training.trainer import StepResult

    async def on_step(result: StepResult) -> None:
        console.print(step_line(result, recipe.train.steps), highlight=False, soft_wrap=True)

    async with training(recipe) as trainer:
        if trainer.step:
            console.print(f"continuing {recipe.run_dir} after step {trainer.step}")
        await trainer.train(on_step)
    console.print(f"done: {recipe.run_dir}/checkpoints holds the newest weights, ready to be served")


def step_line(r: Any, total: int) -> str:
    """One training step on one line."""
    failed = f"  failed {r.failed}" if r.failed else ""
    rate = r.sampled_tokens / max(r.rollout_s, 1e-9)
    return (
        f"step {r.step:>3}/{total}  success {r.success:5.1%}  turns {r.turns:.2f}  invalid {r.invalid:5.1%}  "
        f"entropy {r.entropy:.3f}  grad {r.grad_norm:.2f}  gap {r.logprob_gap:.0e}  "
        f"{rate:,.0f} tok/s  {r.rollout_s + r.update_s:.1f} s{failed}"
    )
