"""Checkpoints: a directory that appears whole or not at all, and from which training continues bit for bit.

checkpoints/000012/   model.safetensors config.json tokenizer.json   ready to be served
                      optimizer.pt                                   optimizer, proximal policy, random states
                      state.json                                     step, sampler, replay buffer, history
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
import torch

from palestra.training.errors import CheckpointError
from palestra.training.policy import Policy


class Stateful(Protocol):
    """Tensors and plain values that training continues from."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Checkpoints:
    """The checkpoints of one run; the newest `keep` stay."""

    def __init__(self, directory: Path, keep: int = 2) -> None:
        self._directory, self._keep = directory, keep

    def latest(self) -> Path | None:
        """The newest complete checkpoint."""
        complete = self._complete()
        return complete[-1] if complete else None

    def save(
        self, step: int, policy: Policy, optimizer: Stateful, state: Mapping[str, Any], tokenizer: Path
    ) -> Path:
        """Write checkpoint `step`, which must be a new one. A crash at any moment leaves the former one in force."""
        target, partial = self._directory / f"{step:06d}", self._directory / f"partial-{step:06d}"
        if target.exists():
            raise CheckpointError(f"{target} exists: continue from it, or train in another directory")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        policy.save(partial, tokenizer=tokenizer)
        torch.save({"optimizer": optimizer.state_dict(), "random": _random_state()}, partial / "optimizer.pt")
        (partial / "state.json").write_bytes(orjson.dumps({"step": step, **state}))
        for path in (*partial.iterdir(), partial):
            _sync(path)
        os.rename(partial, target)
        _sync(self._directory)
        self._prune()
        return target

    @staticmethod
    def read_state(checkpoint: Path) -> dict[str, Any]:
        """state.json of `checkpoint`. Raises CheckpointError."""
        try:
            state: dict[str, Any] = orjson.loads((checkpoint / "state.json").read_bytes())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{checkpoint} is not a complete checkpoint: {error}") from error
        return state

    def load(self, checkpoint: Path, policy: Policy, optimizer: Stateful) -> dict[str, Any]:
        """Restore weights, optimizer and random states; returns state.json. Raises CheckpointError."""
        state = self.read_state(checkpoint)
        try:
            saved = torch.load(checkpoint / "optimizer.pt", weights_only=True)
            policy.load_weights(checkpoint)
            optimizer.load_state_dict(saved["optimizer"])
            _set_random_state(saved["random"])
        except (OSError, EOFError, ValueError, KeyError, RuntimeError, pickle.UnpicklingError) as error:
            raise CheckpointError(
                f"{checkpoint} is damaged or of another model: {error}. Delete it to continue from the one before"
            ) from error
        return state

    def _complete(self) -> list[Path]:
        found = [p for p in self._directory.glob("[0-9]*") if p.name.isdecimal()]
        return sorted(found, key=lambda p: int(p.name))

    def _prune(self) -> None:
        """Remove old checkpoints, under another name first, and what crashes have left."""
        for old in self._complete()[: -self._keep]:
            os.rename(old, self._directory / f"partial-{old.name}")
        for partial in self._directory.glob("partial-*"):
            shutil.rmtree(partial)


def _sync(path: Path) -> None:
    """Have a file, or the names in a directory, on the disk before going on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _random_state() -> dict[str, Any]:
    """As plain values, so that loading a checkpoint runs no code."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    numpy_state = (kind, np.asarray(keys).tolist(), *rest)
    return {"torch": torch.get_rng_state(), "numpy": numpy_state, "python": random.getstate()}


def _set_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])
