"""The optimizers: Muon for the matrices inside the blocks with AdamW for the rest, or AdamW alone.

Muon (Jordan et al. 2024, `torch.optim.Muon`) learns the small policies of this project in about a third of the steps
that AdamW needs. AdamW is what is known to work for large models, adapters and sharded weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from palestra.training.sharded import spread, whole


class Optimizer(Protocol):
    """What an update uses."""

    def step(self, scale: float = 1.0) -> None:
        """Update with the learning rates times `scale`, then clear the gradients."""
        ...

    def zero_grad(self) -> None:
        """Forget the gradients."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All states, whole where they are sharded."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        ...


class _Joined:
    """Several optimizers that behave as one, with one learning-rate scale."""

    def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
        self.parts = parts
        self._base = [float(part.param_groups[0]["lr"]) for part in parts]

    def step(self, scale: float = 1.0) -> None:
        """Update with the learning rates times `scale`, then clear the gradients."""
        for part, lr in zip(self.parts, self._base, strict=True):
            for group in part.param_groups:
                group["lr"] = lr * scale
            part.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """All states, whole where they are sharded."""
        return {"parts": [_mapped(p.state_dict(), lambda _, state: whole(state)) for p in self.parts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        for part, saved in zip(self.parts, state["parts"], strict=True):
            held = [p for group in part.param_groups for p in group["params"]]
            part.load_state_dict(
                _mapped(saved, lambda i, own, held=held: {n: spread(t, held[i]) for n, t in own.items()})  # type: ignore[misc]
            )


class MuonAdamW(_Joined):
    """Muon and AdamW over the trained parameters of one model."""

    def __init__(self, model: nn.Module, *, matrix_lr: float, other_lr: float) -> None:
        """`matrix_lr` for Muon, `other_lr` for AdamW; no weight decay."""
        named = list(_trained(model))
        matrices = [p for name, p in named if _inside(name, p)]
        others = [p for name, p in named if not _inside(name, p)]
        parts: list[torch.optim.Optimizer] = []
        if matrices:
            parts.append(
                torch.optim.Muon(matrices, lr=matrix_lr, weight_decay=0.0, momentum=0.95, nesterov=True)
            )
        if others:
            parts.append(_adamw(others, other_lr))
        super().__init__(parts)


class AdamW(_Joined):
    """AdamW over all of them."""

    def __init__(self, model: nn.Module, *, matrix_lr: float, other_lr: float) -> None:
        """`matrix_lr` for matrices inside the blocks, `other_lr` for the rest; no weight decay."""
        named = list(_trained(model))
        matrices = [p for name, p in named if _inside(name, p)]
        others = [p for name, p in named if not _inside(name, p)]
        groups = [(matrices, matrix_lr), (others, other_lr)]
        super().__init__([_adamw(group, lr) for group, lr in groups if group])


class Offloaded:
    """Another optimizer whose state waits in main memory between steps: two numbers per weight less on an accelerator
    while gradients are computed, for two transfers per step. Not for sharded weights."""

    def __init__(self, inner: _Joined) -> None:
        self._inner = inner
        self._away: list[dict[Any, _Resting]] = [{} for _ in inner.parts]

    def step(self, scale: float = 1.0) -> None:
        """As of the other."""
        with self._here():
            self._inner.step(scale)

    def zero_grad(self) -> None:
        """As of the other."""
        self._inner.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """As of the other, which may continue from it as well."""
        with self._here():
            return self._inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As of the other."""
        with self._here():
            self._inner.load_state_dict(state)

    @contextmanager
    def _here(self) -> Iterator[None]:
        for part, away in zip(self._inner.parts, self._away, strict=True):
            part.state.update({p: _back(own) for p, own in away.items()})
            away.clear()
        try:
            yield
        finally:
            for part, away in zip(self._inner.parts, self._away, strict=True):
                away.update({p: _at_rest(own) for p, own in part.state.items()})
                part.state.clear()


_Resting = dict[str, tuple[Any, torch.device | None]]
"""Values in main memory, and where they belong; None for what is no tensor."""


def _at_rest(state: Mapping[str, Any]) -> _Resting:
    return {n: (v.cpu(), v.device) if isinstance(v, torch.Tensor) else (v, None) for n, v in state.items()}


def _back(state: _Resting) -> dict[str, Any]:
    return {name: value if home is None else value.to(home) for name, (value, home) in state.items()}


optimizers: Mapping[str, Callable[..., _Joined]] = {"muon": MuonAdamW, "adamw": AdamW}
"""By name."""


def _mapped(state: dict[str, Any], change: Callable[[int, Any], Any]) -> dict[str, Any]:
    """An optimizer's state with `change` applied to what it keeps of each parameter, by number."""
    return {**state, "state": {i: change(i, own) for i, own in state["state"].items()}}


def _adamw(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.98), weight_decay=0.0)


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def _inside(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and "embed" not in name and "lm_head" not in name
