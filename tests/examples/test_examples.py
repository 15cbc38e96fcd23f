"""Every example runs as a user would run it, and says what it promises to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAYS = {
    "add_a_harness.py": "4 calls, 1 branch, 0 differ from what the engine saw",
    "credit_from_lists.py": " gigpo [1.41, 0.71, 0.71, -1.41, -0.71]",
    "play_a_world.py": "the result equals the gold's on the database and on 2 perturbed copies",
    "record_the_openai_sdk.py": "call 1: bridge, 62 prompt tokens, ends in node 3",
    "write_a_world.py": "reward 1.0",
}


def test_every_example_is_tried() -> None:
    assert {p.name for p in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_it_runs(name: str) -> None:
    command = [sys.executable, "-W", "error::DeprecationWarning:palestra", str(EXAMPLES / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout.splitlines()
