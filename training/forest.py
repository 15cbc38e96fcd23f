"""Samples as a forest: every token that samples share is there once, and computed once.

The branches and group members of one task begin with the same tokens: the instruction, the tools, often the first
turns. Sorted by their tokens, each sample repeats a prefix of the one before it and adds a run of its own; the runs,
end to end, are the forest in depth-first order. A token sees itself and what is before it in its own sample, so in
that order token k is visible to token q where k <= q < end[k], with end[k] where the subtree of k ends. Hidden states
are what each sample alone would have, up to rounding, and so are gradients: a shared token receives the sum.

Packing is the forest in which nothing is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from palestra.trajectories.model import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """S samples over T distinct tokens, in depth-first order."""

    ids: IntArray  # (T,)
    positions: IntArray  # (T,) within the sample
    end: IntArray  # (T,) one past the last token that sees this one
    starts: IntArray  # (S + 1,) sample s adds the tokens [starts[s], starts[s + 1])
    paths: tuple[IntArray, ...]
    """Where the tokens of each sample are, in the order of `starts`."""

    def __len__(self) -> int:
        return len(self.ids)


def forest(sequences: Sequence[IntArray]) -> Forest:
    """The forest of `sequences`, which must be in the order of `by_prefix`, so that each shares with the one before it
    all that it shares with any earlier one."""
    shared = [0] + [common_prefix(a, b) for a, b in zip(sequences, sequences[1:], strict=False)]
    return _laid_out(sequences, shared)


def packed(sequences: Sequence[IntArray]) -> Forest:
    """`sequences` one after the other, nothing shared."""
    return _laid_out(sequences, [0] * len(sequences))


def by_prefix(sequences: Sequence[IntArray]) -> list[int]:
    """An order of `sequences` in which those with a common prefix are neighbours, the shorter first."""
    return sorted(range(len(sequences)), key=lambda i: sequences[i].astype(">u4").tobytes())


def common_prefix(a: IntArray, b: IntArray) -> int:
    """Number of tokens at which `a` and `b` begin alike."""
    size = min(len(a), len(b))
    differing = np.flatnonzero(a[:size] != b[:size])
    return int(differing[0]) if len(differing) else size


def _laid_out(sequences: Sequence[IntArray], shared: Sequence[int]) -> Forest:
    starts = np.cumsum([0, *(len(s) - k for s, k in zip(sequences, shared, strict=True))]).astype(np.int32)
    end = np.full(starts[-1], starts[-1], np.int32)
    paths: list[IntArray] = []
    path = np.zeros(0, np.int32)
    for start, stop, kept in zip(starts[:-1], starts[1:], shared, strict=True):
        end[path[kept:]] = start
        path = np.concatenate([path[:kept], np.arange(start, stop, dtype=np.int32)])
        paths.append(path)
    tails = [(s[k:], np.arange(k, len(s))) for s, k in zip(sequences, shared, strict=True)]
    return Forest(
        ids=np.concatenate([ids for ids, _ in tails]).astype(np.int32),
        positions=np.concatenate([at for _, at in tails]).astype(np.int32),
        end=end,
        starts=starts,
        paths=tuple(paths),
    )
