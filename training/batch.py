"""Training batches: flat arrays of whole samples, cut into micro-batches by a token budget.

A `Batch` concatenates its samples without padding; `layouts.py` says how a part of it lies before the model. Per-token
weights are fixed when the batch is made, so a loss is the same however the batch is cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import torch

from palestra.training.layouts import Loss, MicroBatch, layouts
from palestra.training.losses import aggregation as aggregations
from palestra.training.losses import token_weights
from palestra.trajectories.model import BoolArray, FloatArray, IntArray
from palestra.trajectories.sample import Sample

Aggregation = Literal["token-mean", "rollout-mean", "rollout-sum", "token-sum"]
_MODES: Mapping[str, aggregations.Aggregation] = {
    "token-mean": "token-mean",
    "rollout-mean": "seq-mean-token-mean",
    "rollout-sum": "seq-mean-token-sum",
    "token-sum": "token-sum",
}
"""A sequence, as `token_weights` has it, is a rollout here, whatever its number of branches."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B samples, T tokens in all, packed end to end."""

    ids: IntArray  # (T,)
    offsets: IntArray  # (B + 1,) sample b is [offsets[b], offsets[b + 1])
    loss_mask: BoolArray  # (T,)
    logprobs: FloatArray  # (T,) recorded when sampled
    advantages: FloatArray  # (T,)
    weights: FloatArray  # (T,) share of each token in the loss; 0 off the loss mask
    versions: IntArray  # (T,) policy version that sampled the token; -1 where not sampled

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def micro_batches(self, token_budget: int, layout: str = "rows") -> Iterator[MicroBatch]:
        """The batch in parts of at most `token_budget` computed positions, at least one sample each.

        Raises KeyError for a layout that is not in `palestra.training.layouts.layouts`.
        """
        spans = [slice(int(a), int(b)) for a, b in pairwise(self.offsets)]
        samples = [self.ids[span] for span in spans]
        for chosen in layouts[layout].cut(samples, token_budget):
            masks = [self.loss_mask[spans[i]] for i in chosen]
            yield layouts[layout].of([samples[i] for i in chosen], masks, self._loss(spans, chosen))

    def _loss(self, spans: Sequence[slice], chosen: Sequence[int]) -> Loss:
        places = [spans[i].start + np.flatnonzero(self.loss_mask[spans[i]]) for i in chosen]
        flat = np.concatenate(places)
        return {
            "targets": torch.from_numpy(self.ids[flat].astype(np.int64)),
            "logprobs": torch.from_numpy(self.logprobs[flat]),
            "advantages": torch.from_numpy(self.advantages[flat]),
            "weights": torch.from_numpy(self.weights[flat]),
            "versions": torch.from_numpy(self.versions[flat]),
            "sequence": torch.from_numpy(np.repeat(np.array(chosen), [len(p) for p in places])),
        }


def make_batch(
    samples: Sequence[Sample],
    advantages: Mapping[tuple[str, int], float],
    aggregation: Aggregation = "token-mean",
    horizon_tokens: int = 1024,
) -> Batch:
    """Pack `samples`; `advantages` maps (rollout id, Call.seq) to the advantage of that decision.

    aggregation, of a batch of R rollouts and T loss tokens: "token-mean" weighs every token 1 / T; "rollout-mean"
    every rollout the same, whatever its number of tokens or samples; "rollout-sum" every token 1 / R; "token-sum"
    every token 1 / (R * horizon_tokens), a constant that favours no length (Dr.GRPO). Raises KeyError for a trained
    call without an advantage, ValueError for an unknown aggregation.
    """
    masks = np.concatenate([s.loss_mask for s in samples])
    values = np.concatenate([_token_advantages(s, advantages) for s in samples])
    return Batch(
        ids=np.concatenate([s.ids for s in samples]),
        offsets=np.concatenate([[0], np.cumsum([len(s.ids) for s in samples])]).astype(np.int32),
        loss_mask=masks,
        logprobs=np.concatenate([s.logprobs for s in samples]),
        advantages=values,
        weights=_weights(samples, masks, aggregation, horizon_tokens),
        versions=np.concatenate([s.versions for s in samples]),
    )


def _token_advantages(sample: Sample, advantages: Mapping[tuple[str, int], float]) -> FloatArray:
    values = np.zeros(len(sample.ids), np.float32)
    for seq in np.unique(sample.calls[sample.loss_mask]):
        values[sample.calls == seq] = advantages[sample.rollout_id, int(seq)]
    return values


def _weights(
    samples: Sequence[Sample], masks: BoolArray, aggregation: Aggregation, horizon_tokens: int
) -> FloatArray:
    if aggregation not in _MODES:
        raise ValueError(f"aggregation is one of {', '.join(get_args(Aggregation))}, got {aggregation!r}")
    numbers = {name: i for i, name in enumerate(dict.fromkeys(s.rollout_id for s in samples))}
    rollout = np.repeat([numbers[s.rollout_id] for s in samples], [len(s.ids) for s in samples])[masks]
    weights = np.zeros(len(masks), np.float32)
    horizon = float(horizon_tokens * max(len(np.unique(rollout)), 1))
    weights[masks] = token_weights(torch.from_numpy(rollout), _MODES[aggregation], horizon=horizon).numpy()
    return weights
