"""Sums and means over sequences of tokens that lie flat, one after the other or mixed."""

from __future__ import annotations

import torch
from torch import Tensor


def dense(sequence: Tensor) -> tuple[Tensor, int]:
    """(sequence ids 0 .. n-1, shape (N,); n) of any ids (N,)."""
    values, ids = torch.unique(sequence, return_inverse=True)
    return ids, len(values)


def sums(values: Tensor, sequence: Tensor, size: int) -> Tensor:
    """Sum of `values` (N,) per sequence, shape (size,); differentiable."""
    return torch.zeros(size, dtype=values.dtype, device=values.device).index_add(0, sequence, values)


def means(values: Tensor, sequence: Tensor, size: int) -> Tensor:
    """Mean of `values` (N,) per sequence, shape (size,); 0 for a sequence without tokens; differentiable."""
    return sums(values, sequence, size) / sums(torch.ones_like(values), sequence, size).clamp(min=1.0)


def maxima(values: Tensor, sequence: Tensor, size: int) -> Tensor:
    """Largest of `values` (N,) per sequence, shape (size,)."""
    lowest = torch.full((size,), -torch.inf, dtype=values.dtype, device=values.device)
    return lowest.scatter_reduce(0, sequence, values, "amax")
