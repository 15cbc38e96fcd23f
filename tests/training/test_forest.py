"""The forest: each shared token once, and everybody sees exactly their own past."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from palestra.training.attention import Runs
from palestra.training.forest import by_prefix, common_prefix, forest, packed
from palestra.trajectories.model import IntArray

sequences_of_few_tokens = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=6).map(lambda ids: np.array(ids, np.int32)),
    min_size=1,
    max_size=8,
)


@given(sequences_of_few_tokens)
def test_each_distinct_prefix_is_one_token(sequences: list[IntArray]) -> None:
    prefixes = {tuple(s[: k + 1]) for s in sequences for k in range(len(s))}
    assert len(forest([sequences[i] for i in by_prefix(sequences)])) == len(prefixes)
    assert len(packed(sequences)) == sum(map(len, sequences))


@given(sequences_of_few_tokens)
def test_every_sample_is_found_again_with_its_positions(sequences: list[IntArray]) -> None:
    ordered = [sequences[i] for i in by_prefix(sequences)]
    for trees in (forest(ordered), packed(ordered)):
        for sample, path in zip(ordered, trees.paths, strict=True):
            assert trees.ids[path].tolist() == sample.tolist()
            assert trees.positions[path].tolist() == list(range(len(sample)))


@given(sequences_of_few_tokens)
def test_a_token_sees_the_past_of_its_own_sample_and_nothing_else(sequences: list[IntArray]) -> None:
    ordered = [sequences[i] for i in by_prefix(sequences)]
    for trees in (forest(ordered), packed(ordered)):
        runs = Runs(trees, torch.device("cpu"))
        every = torch.arange(len(trees))
        for path in trees.paths:
            for depth, token in enumerate(path):
                seen = runs.visible(torch.full_like(every, int(token)), every)
                assert torch.nonzero(seen)[:, 0].tolist() == sorted(path[: depth + 1].tolist())


@given(sequences_of_few_tokens)
def test_neighbours_share_most(sequences: list[IntArray]) -> None:
    ordered = [sequences[i] for i in by_prefix(sequences)]
    for i in range(1, len(ordered)):
        best = max(common_prefix(earlier, ordered[i]) for earlier in ordered[:i])
        assert common_prefix(ordered[i - 1], ordered[i]) == best
