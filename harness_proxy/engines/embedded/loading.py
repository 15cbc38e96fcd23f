"""Reading a model from a local Hugging Face directory: config.json and *.safetensors, sharded or not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from palestra.harness_proxy.engines.embedded.qwen3 import Qwen3Config


def load_config(model_dir: Path) -> Qwen3Config:
    """The model's sizes. Raises FileNotFoundError, and UnsupportedModelError for all but a plain Qwen3."""
    return Qwen3Config.from_dict(_read_json(model_dir, "config.json"))


def load_weights(model_dir: Path) -> dict[str, Tensor]:
    """Every tensor of the directory by its Hugging Face name. Raises FileNotFoundError when there is none."""
    weights: dict[str, Tensor] = {}
    for name in _weight_files(model_dir):
        weights |= read_weights(model_dir / name)
    return weights


def read_weights(file: Path) -> dict[str, Tensor]:
    """Every tensor of one safetensors file. Raises ValueError for a damaged one."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights: dict[str, Tensor] = load_file(file)
    except SafetensorError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    return weights


def write_weights(weights: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors to one safetensors file; tied ones are written once per name."""
    from safetensors.torch import save_file

    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}, file)


def _weight_files(model_dir: Path) -> list[str]:
    if (model_dir / "model.safetensors.index.json").exists():
        return sorted(set(_read_json(model_dir, "model.safetensors.index.json")["weight_map"].values()))
    names = sorted(path.name for path in model_dir.glob("*.safetensors"))
    if not names:
        raise FileNotFoundError(
            f"{model_dir} has no *.safetensors file: write it with `model.save_pretrained(directory)`"
        )
    return names


def _read_json(model_dir: Path, name: str) -> dict[str, Any]:
    path = model_dir / name
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: give the directory of a Hugging Face model.")
    content: dict[str, Any] = json.loads(path.read_text())
    return content
