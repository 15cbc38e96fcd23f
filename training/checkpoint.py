"""Checkpoints: a directory that appears whole or not at all, and from which training continues bit for bit.

checkpoints/000012/   model.safetensors config.json tokenizer.json   ready to be served
                      optimizer.pt                                   optimizer and random states
                      state.json                                     step, sampler, history
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from palestra.training.errors import CheckpointError
from palestra.training.optimizer import MuonAdamW
from palestra.training.policy import Policy


class Checkpoints:
    """The checkpoints of one run; the newest `keep` stay."""

    def __init__(self, directory: Path, keep: int = 2) -> None:
        self._directory, self._keep = directory, keep

    def latest(self) -> Path | None:
        """The newest complete checkpoint."""
        found = sorted(p for p in self._directory.glob("[0-9]*") if p.name.isdigit())
        return found[-1] if found else None

    def save(
        self, step: int, policy: Policy, optimizer: MuonAdamW, state: Mapping[str, Any], tokenizer: Path
    ) -> Path:
        """Write checkpoint `step`. A crash at any moment leaves the former checkpoint in force."""
        target = self._directory / f"{step:06d}"
        partial = self._directory / f"partial-{step:06d}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        policy.save(partial, tokenizer=tokenizer)
        torch.save({"optimizer": optimizer.state_dict(), "random": _random_state()}, partial / "optimizer.pt")
        (partial / "state.json").write_bytes(orjson.dumps({"step": step, **state}))
        _sync(partial)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
        self._prune()
        return target

    def load_state(self, checkpoint: Path, optimizer: MuonAdamW) -> dict[str, Any]:
        """Restore optimizer and random states, return state.json. Raises CheckpointError."""
        try:
            saved = torch.load(checkpoint / "optimizer.pt", weights_only=False)
            state: dict[str, Any] = orjson.loads((checkpoint / "state.json").read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{checkpoint} is not a complete checkpoint: {error}") from error
        optimizer.load_state_dict(saved["optimizer"])
        _set_random_state(saved["random"])
        return state

    def _prune(self) -> None:
        complete = sorted(p for p in self._directory.glob("[0-9]*") if p.name.isdigit())
        for old in [*complete[: -self._keep], *self._directory.glob("partial-*")]:
            shutil.rmtree(old)


def _sync(directory: Path) -> None:
    for path in directory.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def _random_state() -> dict[str, Any]:
    return {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "python": random.getstate()}


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
