"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) by peft, and the weights of a model with them worked in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Lora:
    """Adapters of rank `rank` on every linear layer but the output head; alpha / rank scales what they add."""

    rank: int = 32
    alpha: int = 64


def adapt(model: Any, lora: Lora) -> Any:
    """`model` with fresh adapters, which alone want a gradient; at first they add nothing."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules="all-linear", lora_dropout=0.0)
    return get_peft_model(model, config).get_base_model()


def merged(model: nn.Module) -> dict[str, Tensor]:
    """The state of `model` under the names it had without adapters, with what they add added. Changes nothing."""
    added = dict(_added(model))
    return {
        name.replace(".base_layer.", "."): value.detach() + added[name] if name in added else value.detach()
        for name, value in model.state_dict().items()
        if ".lora_" not in name
    }


def adapters(model: nn.Module) -> dict[str, Tensor]:
    """The adapters alone."""
    return {name: value.detach() for name, value in model.state_dict().items() if ".lora_" in name}


def named_by_peft(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`adapters` under the names of adapter_model.safetensors."""
    return {f"base_model.model.{name.replace('.default.', '.')}": value for name, value in state.items()}


def adapter_config(model: nn.Module, lora: Lora) -> dict[str, Any]:
    """adapter_config.json of an adapted `model`, as engines read it."""
    targets = sorted({name.partition(".lora_")[0].rpartition(".")[2] for name in adapters(model)})
    return {
        "peft_type": "LORA",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": targets,
        "bias": "none",
    }


def _added(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    from peft.tuners.lora import LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            layer: Any = module
            yield f"{name}.base_layer.weight", layer.get_delta_weight("default").detach()
