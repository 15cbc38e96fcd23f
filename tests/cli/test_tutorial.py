"""docs/tutorial.md, as a reader would follow it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from palestra.cli.errors import UsageError
from palestra.cli.scaffold import write_scaffold

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.e2e
def test_every_command_of_the_tutorial_runs(tmp_path: Path) -> None:
    commands = COMMAND.findall((ROOT / "docs" / "tutorial.md").read_text())
    assert len(commands) >= 4
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    for command in commands:
        argv = command.replace("palestra ", "-c 'from palestra.cli import main; main()' ", 1).replace(
            "python ", "", 1
        )
        done = subprocess.run(
            f"{sys.executable} {argv}",
            shell=True,
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_a_world_with_task_grader_and_test_is_under_sixty_lines(tmp_path: Path) -> None:
    folder = write_scaffold("my_world", tmp_path)
    lines = [line for file in folder.glob("*.py") for line in file.read_text().splitlines() if line.strip()]
    assert len(lines) < 60


@pytest.mark.parametrize("name", ["My", "a-b", "1x", "../x", ""])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name"):
        write_scaffold(name, tmp_path)


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    write_scaffold("mine", tmp_path)
    with pytest.raises(UsageError, match="is there already"):
        write_scaffold("mine", tmp_path)
