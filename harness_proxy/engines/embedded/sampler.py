"""Drawing one token per row from logits, given a uniform number per row; top-k and top-p truncation.

Inverse transform sampling: the token is the first whose cumulative probability exceeds u. With u from a
stream per request, what a request draws does not depend on what else is in the batch. Log-probabilities are
of the distribution drawn from: the caller applies temperature and truncation to the logits first. A greedy
token's log-probability is that of the untouched distribution, as in vLLM.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_BELOW_ONE = 1.0 - 2.0**-32


def uniforms(seed: int | None, n: int) -> npt.NDArray[np.float64]:
    """n numbers in [0, 1 - 2**-32] from the Philox stream that `seed` names; fresh entropy for None."""
    bits = np.random.Philox() if seed is None else np.random.Philox(key=seed % 2**128)
    return np.random.Generator(bits).random(n) * _BELOW_ONE


def sample(logits: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Token ids (n,) int64 and their log-probabilities (n,) float32, from logits (n, vocabulary) float32.

    u: (n,) float64 from `uniforms`. Bounding u away from 1 keeps the token inside the vocabulary, and a token
    of probability 0 is never the first to exceed anything.
    """
    logprobs = torch.log_softmax(logits, -1)
    cumulative = torch.cumsum(logprobs.exp(), -1, dtype=torch.float64)
    threshold = u.unsqueeze(-1) * cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, threshold, right=True).clamp_(max=logits.shape[-1] - 1)
    return ids.squeeze(-1), logprobs.gather(-1, ids).squeeze(-1)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely ids (n,) int64, the first of equals, and their log-probabilities (n,) float32."""
    ids = logits.argmax(-1, keepdim=True)
    return ids.squeeze(-1), torch.log_softmax(logits, -1).gather(-1, ids).squeeze(-1)


def truncate(logits: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Logits with -inf wherever top-k, and then top-p over what it left, drops a token.

    top_p: (n,) float32 in [0, 1]; top_k: (n,) int64, 0 for no limit. The most likely token always stays, and
    so does the one that takes the sum past top_p.
    """
    ordered, order = torch.sort(logits, dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    limit = torch.where(top_k > 0, top_k, logits.shape[-1]).unsqueeze(-1)
    ordered = ordered.masked_fill(rank >= limit, float("-inf"))
    probabilities = torch.softmax(ordered, -1)
    before = torch.cumsum(probabilities, -1, dtype=torch.float64) - probabilities
    dropped = (before >= top_p.unsqueeze(-1)) & (top_p < 1.0).unsqueeze(-1) & (rank > 0)
    ordered = ordered.masked_fill(dropped, float("-inf"))
    return torch.empty_like(logits).scatter_(-1, order, ordered)
