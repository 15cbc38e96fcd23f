"""`palestra drift`: what was recorded against what the trainer computes, and mistakes in asking for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

Command = Callable[..., Any]


@pytest.mark.slow
def test_the_weights_that_sampled_agree_and_others_do_not(
    palestra: Command, model: Path, make_model: Callable[..., Path]
) -> None:
    played = palestra(
        *("rollout", "sql-tiny", "--model", model, "--run-dir", "run", "--limit", "2"),
        *("--samples", "1", "--max-reply-tokens", "8"),
    )
    assert played.status == 0, played.err
    own = palestra("drift", "run", "--model", model, "--json")
    found = orjson.loads(own.out)
    assert own.status == 0 and found["tokens"] > 0 and found["largest"] < 1e-3
    assert found["advice"] == ["none needed: engine and trainer agree; what is trained is what was sampled"]
    other = palestra("drift", "run", "--model", make_model(1))
    assert other.status == 0 and "these are other weights" in other.out
    absent = palestra("drift", "run", "--model", model, "--version", "7")
    assert absent.status == 2 and "no call of that policy version" in absent.err


def test_a_run_without_rollouts_is_a_mistake(palestra: Command, model: Path) -> None:
    ended = palestra("drift", "nowhere", "--model", model)
    assert ended.status == 2 and "there are no rollouts in nowhere" in ended.err
