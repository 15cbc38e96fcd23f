"""What is logged is read back."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from palestra.training.errors import ConfigError
from palestra.training.logs import logging_to
from palestra.training.trainer import StepResult


def result(step: int, **changes: Any) -> StepResult:
    numbers = {name: 0.25 for name in StepResult.__dataclass_fields__}
    return StepResult(**numbers | {"step": step} | changes)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_one_curve_for_a_run_that_was_killed_and_continued(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with logging_to(["tensorboard"], tmp_path, 0) as write:
        for step in (1, 2, 3):
            write(result(step, reward=0.1 * step))
    with logging_to(["tensorboard"], tmp_path, 2) as write:  # the checkpoint of step 3 was not finished
        write(result(3, reward=0.9))
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {f"train/{name}" for name in asdict(result(1)) if name != "step"}
    curve = [(e.step, e.value) for e in events.Scalars("train/reward")]
    assert [step for step, _ in curve] == [1, 2, 3]
    assert [value for _, value in curve] == pytest.approx([0.1, 0.2, 0.9])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_keeps_it_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with logging_to(["wandb"], tmp_path, 0) as write:
        write(result(1, reward=0.5))
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 60  # another process writes it
    while not re.search(rb"train/reward\W+0\.5", file.read_bytes()):
        assert time.monotonic() < deadline, file.read_bytes()
        time.sleep(0.1)


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    for name, said in (
        ("paper", "there is no 'paper'; there are tensorboard, wandb"),
        ("wandb", r"wandb is not installed: pip install 'palestra\[logging\]'"),
    ):
        with pytest.raises(ConfigError, match=said), logging_to([name], tmp_path, 0):
            pass
