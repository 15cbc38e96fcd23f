"""The help teaches: every command shows an example, and every example is one that the command takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import typer

from palestra.cli import options
from palestra.cli.app import app
from palestra.tasks import task
from palestra.trajectories import model

ROOT = typer.main.get_command(app)


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


ALL = dict(commands(ROOT))
LEAVES = {path: command for path, command in ALL.items() if not hasattr(command, "commands")}


def help_of(path: tuple[str, ...]) -> str:
    return str(ALL[path].get_help(typer.Context(ALL[path], info_name="palestra", max_content_width=120)))


def examples(path: tuple[str, ...]) -> list[str]:
    lines = (line.strip().removeprefix("Example: ") for line in help_of(path).splitlines())
    found = [re.split(r"\s{3,}", line)[0] for line in lines if line.startswith("palestra ")]
    return [line.partition(" on ")[0] for line in found]


def test_all_commands_are_there() -> None:
    assert {" ".join(path) for path in LEAVES} == {
        "demo", "tasks list", "tasks show", "tasks validate", "rollout", "eval run", "eval compare",
        "train", "show", "export", "proxy", "harness list", "harness install", "harness check",
        "harness run", "engine serve", "sandbox list", "sandbox build", "sandbox load", "sandbox check",
        "sandbox reap", "tasks new", "tasks audit", "env serve", "search serve", "tasks make commit",
        "tasks make release", "tasks make bugs", "drift", "engine vllm",
    }  # fmt: skip


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_help_has_an_example_of_the_command(path: tuple[str, ...]) -> None:
    assert any(example.startswith(f"palestra {' '.join(path)}") for example in examples(path))


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "palestra")
def test_examples_are_what_the_command_line_takes(path: tuple[str, ...]) -> None:
    for example in examples(path):
        command, arguments = ROOT, shlex.split(example)[1:]
        while hasattr(command, "commands"):
            command = command.commands[arguments.pop(0)]
        command.make_context("palestra", arguments)  # parses, and does not run it


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "palestra")
def test_every_option_is_explained(path: tuple[str, ...]) -> None:
    assert all(parameter.help for parameter in ALL[path].params if hasattr(parameter, "help"))


def test_summaries_fit_on_a_line() -> None:
    for path, command in ALL.items():
        if path != ("demo",):
            summary = command.get_short_help_str(90)
            assert not summary.endswith("..."), f"{path}: {summary}"


def test_fixed_values_are_those_of_the_library() -> None:
    assert get_args(options.Split) == get_args(task.Split) == task.SPLITS
    assert get_args(options.Mode) == get_args(model.Mode)
