"""Attention over a forest, for any Hugging Face model whose layers look their attention up by name.

On a GPU one FlexAttention call with a block mask; on CPU one scaled dot product per sample, over the keys of its path.
Without a forest it is PyTorch's own causal attention, which is right for right-padded rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from palestra.training.forest import Forest

NAME = "palestra_forest"
"""`attn_implementation` of a model that is trained on forests; call `register` first."""


class Runs:
    """A forest on a device, as attention needs it. Pass it to the model as `runs=`."""

    def __init__(self, trees: Forest, device: torch.device) -> None:
        self.starts: list[int] = trees.starts.tolist()
        self.paths = [torch.from_numpy(p.astype("int64")).to(device) for p in trees.paths]
        self.positions = torch.from_numpy(trees.positions.astype("int64")).to(device)
        self.end = torch.from_numpy(trees.end.astype("int64")).to(device)
        self._masks: dict[int | None, Any] = {}

    def visible(self, query: Tensor, key: Tensor, window: int | None = None) -> Tensor:
        """Whether the tokens at `query` see those at `key`, elementwise; both int64."""
        seen = (key <= query) & (query < self.end[key])
        return seen if window is None else seen & (self.positions[query] - self.positions[key] < window)

    def block_mask(self, window: int | None) -> Any:
        """The same for FlexAttention; all layers share it."""
        from torch.nn.attention.flex_attention import create_block_mask

        if window not in self._masks:
            size = len(self.end)
            self._masks[window] = create_block_mask(
                lambda b, h, q, k: self.visible(q, k, window), None, None, size, size, self.end.device.type
            )
        return self._masks[window]


@cache
def register() -> None:
    """Make `NAME` known to transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, _no_mask)


def _no_mask(*_args: Any, **_kwargs: Any) -> None:
    """The forest says who sees whom."""


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    runs: Runs | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """query (1, heads, T, D), key and value (1, key heads, T, D) -> (1, T, heads, D), as transformers has it."""
    if runs is None:
        raise ValueError(f"attention {NAME!r} needs runs=: pass Runs(forest, device) to the model's forward")
    over = _per_sample if query.device.type == "cpu" else _flex
    return over(query, key, value, runs, scaling, sliding_window).transpose(1, 2), None


def _per_sample(
    query: Tensor, key: Tensor, value: Tensor, runs: Runs, scaling: float | None, window: int | None
) -> Tensor:
    out = []
    for start, stop, path in zip(runs.starts, runs.starts[1:], runs.paths, strict=False):
        if stop == start:
            continue
        whole = len(path) == stop - start
        keys = slice(start, stop) if whole else path
        plain = whole and (window is None or window >= len(path))
        out.append(
            scaled_dot_product_attention(
                query[:, :, start:stop],
                key[:, :, keys],
                value[:, :, keys],
                attn_mask=None if plain else _visible(len(path), stop - start, window),
                is_causal=plain,
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        )
    return torch.cat(out, dim=2)


def _visible(length: int, new: int, window: int | None) -> Tensor:
    """(new, length) bool: what the last `new` tokens of a sample see."""
    seen = torch.ones(new, length, dtype=torch.bool).tril(length - new)
    return seen if window is None else seen.triu(length - new - window + 1)


def _flex(
    query: Tensor, key: Tensor, value: Tensor, runs: Runs, scaling: float | None, window: int | None
) -> Tensor:
    out = _flex_attention()(
        query,
        key,
        value,
        block_mask=runs.block_mask(window),
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out  # type: ignore[no-any-return]


@cache
def _flex_attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)
