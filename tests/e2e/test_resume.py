"""A training run that is killed at ten random moments ends with the bits of one that was left in peace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from subprocess import PIPE

import numpy as np
import orjson
import pytest
import torch
from tokenizers import Tokenizer

from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.training.tiny import save_model_dir
from palestra.trajectories.store import Store

KILLS = 10
LIMIT_S = 1500
"""Wall clock for one run, on a machine that does much else; it takes about a minute of CPU time."""
SCRIPT = Path(__file__).with_name("resume_run.py")

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(2 * LIMIT_S + 60)]


def play(model: Path, run_dir: Path, kills: int) -> list[str]:
    """Run the script to its end; what became of each start."""
    command = [sys.executable, str(SCRIPT), str(model), str(run_dir), str(kills), "3"]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what it has forked goes with it
            raise
    assert process.returncode == 0, errors
    *starts, last = output.splitlines()
    assert last == "exit 0", errors
    return starts


def test_killed_ten_times_and_none_the_worse(tmp_path: Path) -> None:
    model = make_tiny_tokenizer(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    save_model_dir(model, tokenizer, seed=0, hidden=32, layers=2, heads=2, context_tokens=512)
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    assert play(model, calm, 0) == []
    assert play(model, rough, KILLS) == ["killed"] * KILLS

    _check_rollouts(calm, rough)
    _check_weights(calm, rough)
    _check_no_engine_is_left(rough)


def _check_rollouts(calm: Path, rough: Path) -> None:
    """Each rollout is there once, the acknowledged ones among them, and it is the same rollout."""
    with Store.open(calm / "store") as store:
        expected = {t.rollout.rollout_id: t for t in store}
    with Store.open(rough / "store") as store:
        ids = store.ids()
        lost = [i for i in ids if "~" in i]
        assert sorted(set(ids) - set(lost)) == sorted(expected)
        assert all(store.rollout(i).reward is None for i in lost)
        acknowledged = Counter((rough / "acknowledged").read_text().split())
        assert set(acknowledged) <= set(ids)
        assert set(acknowledged.values()) == {1}, "a committed rollout was run again"
        for trajectory in map(store.get, expected):
            other = expected[trajectory.rollout.rollout_id]
            assert trajectory.rollout.score == other.rollout.score
            assert [s.action for s in trajectory.steps] == [s.action for s in other.steps]
            for mine, theirs in zip(trajectory.nodes, other.nodes, strict=True):
                assert np.array_equal(mine.token_ids, theirs.token_ids)
                assert np.array_equal(mine.logprobs, theirs.logprobs)
                assert mine.versions == theirs.versions


def _check_weights(calm: Path, rough: Path) -> None:
    mine, theirs = (max((run / "checkpoints").iterdir()) for run in (calm, rough))
    name = "model.safetensors"
    assert (mine / name).read_bytes() == (theirs / name).read_bytes(), "the weights differ"
    assert (mine / name).read_bytes() != (calm.parent / "model" / name).read_bytes(), "nothing was learnt"
    states = [_tensors(torch.load(run / "optimizer.pt")["optimizer"]) for run in (mine, theirs)]
    assert states[0] == states[1]
    assert _untimed(mine / "state.json") == _untimed(theirs / "state.json")


def _tensors(saved: object) -> list[object]:
    """All leaves of a nested structure, tensors as lists."""
    if isinstance(saved, torch.Tensor):
        return [saved.tolist()]
    if isinstance(saved, dict):
        return [leaf for key in sorted(saved, key=str) for leaf in _tensors(saved[key])]
    if isinstance(saved, list | tuple):
        return [leaf for value in saved for leaf in _tensors(value)]
    return [saved]


def _untimed(path: Path) -> object:
    """state.json without how long things took."""
    state = orjson.loads(path.read_bytes())
    return state | {
        "history": [{k: v for k, v in row.items() if not k.endswith("_s")} for row in state["history"]]
    }


def _check_no_engine_is_left(run_dir: Path) -> None:
    """An engine's process ends with the run that started it, however that ended."""
    deadline = time.monotonic() + 30
    for pid in (run_dir / "engines").read_text().split():
        while _runs(int(pid)):
            assert time.monotonic() < deadline, f"engine {pid} is still there"
            time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
