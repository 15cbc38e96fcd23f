"""Every recipe of examples/ is sound, and begins with the command that runs it."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer

from palestra.cli.app import app
from palestra.training.checks import problems
from palestra.training.recipe import Recipe

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
COMMAND = re.compile(r"# (?:\S+=\S+ )?(?:torchrun .*--no-python )?palestra (.*)")
ROOT = typer.main.get_command(app)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_it_is_sound_and_says_how_to_run_it(path: Path) -> None:
    text = path.read_text()
    assert list(problems(Recipe.model_validate(tomllib.loads(text)).train)) == []
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
