"""Which tokens to train: those that carry most of the signal."""

from __future__ import annotations

import torch
from torch import Tensor

from palestra.training.losses.segments import dense, sums


@torch.no_grad()
def informative_tokens(advantages: Tensor, entropy: Tensor, sequence: Tensor, *, share: float) -> Tensor:
    """The `share` of the tokens of each sequence with the largest |A| * H, bool (N,); at least one of each.

    Inputs (N,), H the entropy at the token in nats. Per sequence, so that a cut into micro-batches changes nothing.
    experimental: the token half of D3S, of which the abstract alone was at hand; that the share is per sequence
    and constant is assumed.

    Raises ValueError for a share outside (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is above 0 and at most 1, got {share}")
    ids, size = dense(sequence)
    worth = advantages.abs() * entropy
    order = torch.argsort(worth, descending=True, stable=True)
    order = order[torch.argsort(ids[order], stable=True)]
    length = sums(torch.ones_like(worth), ids, size).long()
    start = torch.cumsum(length, 0) - length
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device) - start[ids[order]]
    return rank < torch.ceil(length[ids] * share - 1e-6).clamp(min=1)
