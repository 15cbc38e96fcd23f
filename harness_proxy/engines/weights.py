"""Weights on their way to an engine or a checkpoint: one safetensors file, written whole or not at all.

A model may use its embedding as its output head as well; the two are then one tensor under two names.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def save_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write `weights` to `path` at once or not at all; tied tensors are written once."""
    from safetensors.torch import save_file

    unique = {t.data_ptr(): name for name, t in sorted(weights.items())}
    partial = path.with_suffix(".partial")
    save_file({n: weights[n].contiguous() for n in unique.values()}, partial, metadata={"format": "pt"})
    os.replace(partial, path)


def untied(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`weights` with a tensor of its own for every name, and an output head even where the embedding is it."""
    embedding = [w for n, w in weights.items() if n.endswith("embed_tokens.weight")]
    head = weights["lm_head.weight"] if "lm_head.weight" in weights else embedding[0]
    return {**weights, "lm_head.weight": head.clone()}


def untied_copy(model_dir: Path, target: Path) -> Path:
    """A copy of a model of one safetensors file whose output head is a tensor of its own; returns `target`."""
    from safetensors.torch import load_file

    shutil.copytree(model_dir, target, dirs_exist_ok=True)
    config = json.loads((target / "config.json").read_text()) | {"tie_word_embeddings": False}
    (target / "config.json").write_text(json.dumps(config, indent=2))
    save_weights(untied(load_file(target / "model.safetensors")), target / "model.safetensors")
    return target
