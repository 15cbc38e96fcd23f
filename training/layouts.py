"""How the samples of a micro-batch lie before the model: as padded rows, packed end to end, or as a forest.

| layout | computes | for |
| --- | --- | --- |
| rows | every position of a rectangle, padding included | many short samples of a small model on a CPU |
| packed | every token once per sample | samples of very different length |
| tree | every token once, however many samples begin with it | groups and branches that share prompt and early turns |

All three give the same log-probabilities and gradients up to rounding; where nothing is shared a tree is packed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from palestra.training.attention import NAME, Runs
from palestra.training.forest import Forest, by_prefix, common_prefix, forest, packed
from palestra.training.losses import Tokens
from palestra.trajectories.model import BoolArray, IntArray

Loss = Mapping[str, Tensor]
"""The first six fields of a `MicroBatch`."""


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch(ABC):
    """Some samples of a batch, laid out for one forward pass, and their N loss tokens, sample after sample."""

    attention: ClassVar[str]
    """`attn_implementation` of a model that is to see this layout."""

    targets: Tensor  # (N,) int64
    logprobs: Tensor  # (N,) recorded when sampled
    advantages: Tensor  # (N,)
    weights: Tensor  # (N,)
    versions: Tensor  # (N,) policy version that sampled the token
    sequence: Tensor  # (N,) index of the sample in its batch

    @classmethod
    @abstractmethod
    def cut(cls, samples: Sequence[IntArray], token_budget: int) -> Iterator[list[int]]:
        """Indices of the samples of each micro-batch: at most `token_budget` computed positions, or one sample."""

    @classmethod
    @abstractmethod
    def of(cls, samples: Sequence[IntArray], masks: Sequence[BoolArray], loss: Loss) -> Self:
        """Lay out `samples`, whose loss tokens are where `masks` say."""

    @abstractmethod
    def hidden(self, decoder: Any) -> Tensor:
        """(N, H): the last hidden state before each loss token."""

    @property
    @abstractmethod
    def positions(self) -> int:
        """Positions that are computed."""

    def to(self, device: torch.device) -> Self:
        """The same, with the loss tokens on `device`."""
        moved: dict[str, Any] = {f.name: getattr(self, f.name).to(device) for f in fields(MicroBatch)}
        return replace(self, **moved)

    def tokens(self, old: Tensor, reference: Tensor | None = None) -> Tokens:
        """The N loss tokens as losses take them; `old` (N,) are the proximal policy's log-probabilities."""
        return Tokens(self.logprobs, old, self.advantages, self.weights, self.sequence, reference)


@dataclass(frozen=True, slots=True, eq=False)
class Rows(MicroBatch):
    """Samples of similar length as right-padded rows."""

    attention: ClassVar[str] = "sdpa"

    ids: Tensor  # (R, W) int64, 0 where padded
    loss_mask: Tensor  # (R, W) bool

    @classmethod
    def cut(cls, samples: Sequence[IntArray], token_budget: int) -> Iterator[list[int]]:
        """The longest first."""
        chosen: list[int] = []
        for index in sorted(range(len(samples)), key=lambda i: -len(samples[i])):
            if chosen and (len(chosen) + 1) * len(samples[chosen[0]]) > token_budget:
                yield chosen
                chosen = []
            chosen.append(index)
        if chosen:
            yield chosen

    @classmethod
    def of(cls, samples: Sequence[IntArray], masks: Sequence[BoolArray], loss: Loss) -> Self:
        width = max(map(len, samples))
        ids = torch.zeros(len(samples), width, dtype=torch.long)
        where = torch.zeros(len(samples), width, dtype=torch.bool)
        for row, (sample, mask) in enumerate(zip(samples, masks, strict=True)):
            ids[row, : len(sample)] = torch.from_numpy(sample.astype(np.int64))
            where[row, : len(sample)] = torch.from_numpy(mask)
        return cls(**loss, ids=ids, loss_mask=where)

    def hidden(self, decoder: Any) -> Tensor:
        """Padding is never attended to by a real token, so no mask is needed beyond the causal one."""
        device = self.targets.device
        hidden: Tensor = decoder(input_ids=self.ids.to(device), use_cache=False).last_hidden_state
        before = torch.zeros_like(self.loss_mask)
        before[:, :-1] = self.loss_mask[:, 1:]
        return hidden[before.to(device)]

    @property
    def positions(self) -> int:
        return self.ids.numel()


@dataclass(frozen=True, slots=True, eq=False)
class Trees(MicroBatch):
    """Samples as a forest."""

    attention: ClassVar[str] = NAME

    trees: Forest
    sources: Tensor  # (N,) int64: where in the forest the token before each loss token is

    @classmethod
    def cut(cls, samples: Sequence[IntArray], token_budget: int) -> Iterator[list[int]]:
        """Samples that begin alike stay together."""
        chosen: list[int] = []
        size = 0
        for index in by_prefix(samples):
            sample = samples[index]
            new = len(sample) - (common_prefix(samples[chosen[-1]], sample) if chosen else 0)
            if chosen and size + new > token_budget:
                yield chosen
                chosen, size, new = [], 0, len(sample)
            chosen.append(index)
            size += new
        if chosen:
            yield chosen

    @classmethod
    def of(cls, samples: Sequence[IntArray], masks: Sequence[BoolArray], loss: Loss) -> Self:
        return cls._in(forest(samples), masks, loss)

    @classmethod
    def _in(cls, trees: Forest, masks: Sequence[BoolArray], loss: Loss) -> Self:
        before = [path[np.flatnonzero(mask) - 1] for path, mask in zip(trees.paths, masks, strict=True)]
        sources = torch.from_numpy(np.concatenate(before).astype(np.int64))
        return cls(**loss, trees=trees, sources=sources)

    def hidden(self, decoder: Any) -> Tensor:
        device = self.targets.device
        runs = Runs(self.trees, device)
        ids = torch.from_numpy(self.trees.ids.astype(np.int64)).to(device)
        out = decoder(input_ids=ids[None], position_ids=runs.positions[None], use_cache=False, runs=runs)
        hidden: Tensor = out.last_hidden_state[0]
        return hidden[self.sources.to(device)]

    @property
    def positions(self) -> int:
        return len(self.trees)


class Packed(Trees):
    """Samples one after the other."""

    __slots__ = ()

    @classmethod
    def cut(cls, samples: Sequence[IntArray], token_budget: int) -> Iterator[list[int]]:
        ends = np.cumsum([len(s) for s in samples])
        starts = [0]
        for index, end in enumerate(ends):
            before = ends[starts[-1] - 1] if starts[-1] else 0
            if end - before > token_budget and index > starts[-1]:
                starts.append(index)
        for start, stop in pairwise([*starts, len(samples)]):
            yield list(range(start, stop))

    @classmethod
    def of(cls, samples: Sequence[IntArray], masks: Sequence[BoolArray], loss: Loss) -> Self:
        return cls._in(packed(samples), masks, loss)


layouts: dict[str, type[MicroBatch]] = {"rows": Rows, "packed": Packed, "tree": Trees}
"""By name."""
