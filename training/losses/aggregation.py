"""From one loss per token to one number: what every token weighs.

The denominators may be given: those of the whole batch, wherever its parts are computed. Then the weighted sums of
any parts add up to the loss of the whole, and so do their gradients. It computes no loss.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "token-sum"]


def token_weights(
    sequence: Tensor,
    mode: Aggregation,
    *,
    tokens: float | None = None,
    sequences: float | None = None,
    horizon: float | None = None,
) -> Tensor:
    """Weight of every token, float32 (N,), for the sequences of `sequence`, int64 (N,).

    token-mean            1 / tokens: every token counts the same
    seq-mean-token-sum    1 / sequences: long sequences count more
    seq-mean-token-mean   1 / (tokens of its sequence * sequences): every sequence counts the same
    token-sum             1 / horizon: a constant, so that no length is favoured (Dr.GRPO, arXiv:2503.20783)

    `tokens` and `sequences` are those of the whole batch; by default those given here. For seq-mean-token-mean a
    sequence must not be split. Source: verl core_algos.py agg_loss, whose last mode ("seq-mean-token-sum-norm") is
    token-sum with the padded length as horizon, and whose data-parallel factor is in `tokens` and `sequences` here.

    Departures: no tokens give no loss where the code gives NaN.

    Raises ValueError for an unknown mode, or token-sum without `horizon`.
    """
    if mode not in get_args(Aggregation):
        raise ValueError(f"aggregation is one of {', '.join(get_args(Aggregation))}, got {mode!r}")
    if mode == "token-sum" and horizon is None:
        raise ValueError(
            "token-sum divides by a constant: give horizon=, the longest possible sequence in tokens"
        )
    sequence_ids, length = torch.unique(sequence, return_inverse=True, return_counts=True)[1:]
    of_sequences = float(len(length)) if sequences is None else sequences
    per_token = {
        "token-mean": 1.0 / max(float(len(sequence)) if tokens is None else tokens, 1.0),
        "token-sum": 1.0 / (horizon or 1.0),
    }.get(mode, 1.0 / max(of_sequences, 1.0))
    weights = torch.full((len(sequence),), per_token, device=sequence.device)
    return weights / length[sequence_ids] if mode == "seq-mean-token-mean" else weights
