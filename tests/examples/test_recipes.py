"""Every recipe of examples/ is sound, begins with the command that runs it, and trains."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from palestra.cli.app import app
from palestra.tasks.registry import registered
from palestra.training.checks import problems
from palestra.training.recipe import Recipe, training
from palestra.training.tiny import byte_tokenizer, save_model_dir
from palestra.training.trainer import StepResult

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMAND = re.compile(r"# (?:\S+=\S+ )?(?:torchrun .*--no-python )?palestra (.*)")
LARGE = sorted(EXAMPLES.glob("qwen3_*.toml"))
TINY = {
    "steps": 2,
    "groups_per_step": 2,
    "group_size": 2,
    "max_reply_tokens": 8,
    "threads": 1,
    "matrix_lr": 1e-3,
}
ROOT = typer.main.get_command(app)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_it_is_sound_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text()
    recipe = Recipe.model_validate(tomllib.loads(text))
    assert list(problems(recipe.train)) == [] and recipe.tasks in dict(registered())
    commands = [match[1] for line in text.splitlines() if (match := COMMAND.match(line))]
    assert commands[0] == f"train examples/{path.name}" and commands[0] in text.splitlines()[0]
    for command in commands:
        _parse(shlex.split(command))


def _parse(arguments: list[str]) -> None:
    command = ROOT
    while hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context("palestra", arguments)


def test_an_engine_that_sleeps_during_updates_cannot_collect_ahead() -> None:
    values = tomllib.loads((EXAMPLES / "qwen3_0.6b_sql.toml").read_text())
    values["train"]["staleness"] = 1
    with pytest.raises(ValueError, match="colocated lets vLLM sleep during updates"):
        Recipe.model_validate(values)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"publish": "adapters"}, "needs adapters: give policy.lora"),
        ({"publish": "broadcast", "colocated": True}, "from one accelerator to another"),
        ({"publish": "broadcast", "kind": "embedded", "colocated": False}, 'is for kind = "vllm"'),
    ],
)
def test_ways_of_publishing_that_do_not_fit(engine: dict[str, Any], said: str) -> None:
    values = tomllib.loads((EXAMPLES / "qwen3_0.6b_sql.toml").read_text())
    values["engine"] |= engine
    with pytest.raises(ValueError, match=said):
        Recipe.model_validate(values)


@pytest.mark.parametrize("path", LARGE, ids=lambda path: path.stem)
async def test_recipes_for_large_models_train_a_tiny_one(path: Path, tmp_path: Path) -> None:
    """On the CPU, with the embedded engine and tasks without a machine; what is minimised, and how, is as written."""
    model = tmp_path / "model"
    save_model_dir(model, byte_tokenizer(), seed=0, hidden=32, layers=2, heads=2, context_tokens=8192)
    keys = tomllib.loads(path.read_text())
    keys |= {"model": model, "tasks": "sql-tiny", "run_dir": tmp_path / "run", "log": [], "engine": {}}
    keys["policy"] |= {"device": "cpu"}
    keys["train"] |= TINY
    seen: list[StepResult] = []

    async def on_step(result: StepResult) -> None:
        seen.append(result)

    async with training(Recipe.model_validate(keys)) as trainer:
        await trainer.train(on_step)
    assert [result.step for result in seen] == [1, 2]
    assert all(result.failed == 0 and result.logprob_gap < 0.2 for result in seen)
    assert seen[0].logprob_gap > 0, "bfloat16 is compared with float32"
