"""Two processes with sharded weights compute what one process does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = Path(__file__).parent / "sharded_run.py"


def run(processes: int, model_dir: Path, out: Path, layout: str) -> Any:
    launch = [sys.executable, str(SCRIPT)]
    if processes > 1:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        launch += [str(processes), str(SCRIPT)]
    done = subprocess.run(
        [*launch, str(model_dir), str(out), layout],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["rows", "tree"])
def test_the_number_of_processes_changes_only_rounding(model_dir: Path, tmp_path: Path, layout: str) -> None:
    one = run(1, model_dir, tmp_path / "one", layout)
    two = run(2, model_dir, tmp_path / "two", layout)
    for a, b in zip(one["results"], two["results"], strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-6)
    assert one["weights"].keys() == two["weights"].keys()
    for name, weight in one["weights"].items():
        difference = (two["weights"][name] - weight).abs()
        assert float(difference.mean()) < 1e-6  # AdamW makes a whole step of what is rounding
