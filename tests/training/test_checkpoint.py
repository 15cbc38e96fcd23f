"""Checkpoints are whole or not there, and training continues from them bit for bit."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palestra.training import checkpoint as checkpoint_module
from palestra.training.checkpoint import Checkpoints
from palestra.training.errors import CheckpointError
from palestra.training.optimizer import MuonAdamW
from palestra.training.policy import Policy
from palestra.training.tiny import save_model_dir


class Run:
    """A policy in training, and its checkpoints in `directory`."""

    def __init__(self, model_dir: Path, directory: Path) -> None:
        self.tokenizer = model_dir / "tokenizer.json"
        self.policy = Policy.load(model_dir)
        self.optimizer = MuonAdamW(self.policy.model, matrix_lr=0.01, other_lr=0.01)
        self.checkpoints = Checkpoints(directory / "checkpoints")

    def update(self) -> None:
        """One step on random tokens, from torch's global generator."""
        logits = self.policy.model(input_ids=torch.randint(0, 300, (2, 8))).logits
        logits.square().mean().backward()
        self.optimizer.step()

    def save(self, step: int) -> Path:
        return self.checkpoints.save(step, self.policy, self.optimizer, {"history": [step]}, self.tokenizer)

    def load(self, checkpoint: Path) -> dict[str, Any]:
        return self.checkpoints.load(checkpoint, self.policy, self.optimizer)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.policy.weights().items()}


@pytest.fixture
def run(model_dir: Path, tmp_path: Path) -> Run:
    return Run(model_dir, tmp_path)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_training_continues_bit_for_bit(run: Run, model_dir: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    run.update()
    saved = run.save(1)
    drawn = random.random(), np.random.random()
    run.update()
    run.update()

    torch.manual_seed(99)
    random.seed(99)
    np.random.seed(99)
    other = Run(model_dir, tmp_path)
    assert other.load(saved) == {"step": 1, "history": [1]}
    assert (random.random(), np.random.random()) == drawn
    other.update()
    other.update()
    assert same(run.weights(), other.weights())
    for mine, theirs in zip(run.optimizer.parts, other.optimizer.parts, strict=True):
        for key, state in mine.state_dict()["state"].items():
            assert same(state, theirs.state_dict()["state"][key])


def test_the_newest_are_kept(run: Run) -> None:
    directories = [run.save(step) for step in (0, 1, 2, 3)]
    assert [d.exists() for d in directories] == [False, False, True, True]
    assert run.checkpoints.latest() == directories[-1]


def test_a_checkpoint_is_ready_to_be_served(run: Run) -> None:
    saved = run.save(1)
    assert same(Policy.load(saved).weights(), run.weights())
    assert (saved / "tokenizer.json").read_bytes() == run.tokenizer.read_bytes()


def test_steps_are_numbers_not_words(run: Run) -> None:
    run.save(999_999)
    newest = run.save(1_000_000)
    assert run.checkpoints.latest() == newest


def test_no_checkpoint(run: Run) -> None:
    assert run.checkpoints.latest() is None


def test_what_exists_is_not_overwritten(run: Run) -> None:
    run.save(1)
    with pytest.raises(CheckpointError, match="000001 exists"):
        run.save(1)


class Killed(BaseException):
    """The process ended here."""


WRITES = ("policy.save", "torch.save", "write_bytes", "_sync", "os.rename", "shutil.rmtree")


@pytest.mark.parametrize("before", WRITES)
def test_a_crash_while_saving_leaves_the_former_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Dies just before each kind of write; `rmtree` is the removal of old ones, after the new one is there."""
    torch.manual_seed(0)
    for step in (1, 2):
        run.save(step)
    kept = run.weights()
    run.update()

    def die(*args: Any, **options: Any) -> None:
        raise Killed

    target: Any = {
        "policy.save": run.policy,
        "torch.save": torch,
        "write_bytes": Path,
        "_sync": checkpoint_module,
        "os.rename": checkpoint_module.os,  # type: ignore[attr-defined]
        "shutil.rmtree": checkpoint_module.shutil,  # type: ignore[attr-defined]
    }[before]
    with monkeypatch.context() as patch:
        patch.setattr(target, before.rpartition(".")[2], die)
        with pytest.raises(Killed):
            run.save(3)
    latest = run.checkpoints.latest()
    assert latest is not None
    survivor = Checkpoints(latest.parent)
    assert survivor.read_state(latest)["step"] == (
        2 if before != "shutil.rmtree" or latest.name == "000002" else 3
    )
    if latest.name == "000002":
        run.load(latest)
        assert same(run.weights(), kept)
        run.save(3)
    run.save(4)
    assert sorted(p.name for p in latest.parent.iterdir()) == ["000003", "000004"]


class TestDamage:
    @pytest.mark.parametrize("file", ["state.json", "optimizer.pt", "model.safetensors"])
    @pytest.mark.parametrize("harm", ["gone", "empty", "cut", "garbage"])
    def test_a_damaged_file_is_named(self, run: Run, file: str, harm: str) -> None:
        run.update()
        path = run.save(1) / file
        data = path.read_bytes()
        if harm == "gone":
            path.unlink()
        else:
            path.write_bytes(
                {"empty": b"", "cut": data[: len(data) // 2], "garbage": b"\x80\x02garbage"}[harm]
            )
        with pytest.raises(CheckpointError, match="000001"):
            run.load(path.parent)

    def test_another_model(self, run: Run, model_dir: Path, tmp_path: Path) -> None:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        save_model_dir(tmp_path / "wide", tokenizer, seed=1, hidden=64, layers=2, heads=2)
        saved = run.save(1)
        with pytest.raises(CheckpointError, match="of another model"):
            Run(tmp_path / "wide", tmp_path).load(saved)

    def test_loading_runs_no_code(self, run: Run, tmp_path: Path) -> None:
        class Trap:
            def __reduce__(self) -> Any:
                return shutil.copy, (str(run.tokenizer), str(tmp_path / "sprung"))

        saved = run.save(1)
        torch.save({"optimizer": Trap(), "random": {}}, saved / "optimizer.pt")
        with pytest.raises(CheckpointError):
            run.load(saved)
        assert not (tmp_path / "sprung").exists()


class TestOptimizer:
    def test_matrices_of_the_blocks_go_to_muon_and_the_rest_to_adamw(self, run: Run) -> None:
        muon, adamw = run.optimizer.parts
        counted = [sum(p.numel() for g in part.param_groups for p in g["params"]) for part in (muon, adamw)]
        assert sum(counted) == run.policy.num_parameters
        assert all(p.ndim == 2 for g in muon.param_groups for p in g["params"])
        embedding = run.policy.model.get_input_embeddings().weight  # type: ignore[operator]
        assert any(p is embedding for g in adamw.param_groups for p in g["params"])

    def test_a_step_scales_the_rates_and_clears_the_gradients(self, run: Run) -> None:
        before = run.weights()
        torch.manual_seed(0)
        logits = run.policy.model(input_ids=torch.randint(0, 300, (1, 4))).logits
        logits.square().mean().backward()
        run.optimizer.step(0.0)
        assert same(run.weights(), before)
        assert all(p.grad is None for p in run.policy.parameters())
        run.update()
        assert not same(run.weights(), before)
        assert [p.param_groups[0]["lr"] for p in run.optimizer.parts] == [0.01, 0.01]
