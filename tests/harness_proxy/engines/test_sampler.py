"""Drawing tokens: exact inverse transform sampling, truncation, and random streams per request."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.harness_proxy.engines.embedded.sampler import greedy, sample, truncate, uniforms

finite = st.floats(-30, 30, width=32)


def test_frequencies_are_the_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, float("-inf")])
    n = 200_000
    ids, logprobs = sample(logits.expand(n, -1), torch.from_numpy(uniforms(3, n)))
    probabilities = logits.softmax(-1)
    counts = torch.bincount(ids, minlength=5) / n
    assert torch.allclose(counts, probabilities, atol=5e-3)
    assert counts[4] == 0
    assert torch.equal(logprobs, logits.log_softmax(-1)[ids])


@settings(max_examples=60, deadline=None)
@given(st.lists(finite, min_size=1, max_size=12), st.floats(0, 1 - 2**-32))
def test_any_u_gives_a_token_of_positive_probability(logits: list[float], u: float) -> None:
    row = torch.tensor([[*logits, float("-inf")]])
    ids, logprobs = sample(row, torch.tensor([u], dtype=torch.float64))
    assert 0 <= ids[0] < len(logits)
    assert torch.isfinite(logprobs[0])


def test_the_largest_u_stays_inside_a_large_vocabulary() -> None:
    torch.manual_seed(0)
    logits = torch.randn(4, 150_000) * 3
    ids, _ = sample(logits, torch.full((4,), 1 - 2**-32, dtype=torch.float64))
    assert (ids < 150_000).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(finite, min_size=2, max_size=12), st.integers(0, 14), st.floats(1 / 64, 1, width=32))
def test_truncation_keeps_what_its_definition_keeps(logits: list[float], top_k: int, top_p: float) -> None:
    row = torch.tensor(logits)
    kept = truncate(row[None], torch.tensor([top_p]), torch.tensor([top_k]))[0].isfinite()
    order = torch.sort(row, descending=True, stable=True).indices
    if top_k:
        order = order[:top_k]
    probabilities = row[order].double().softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    sure = order[(before < top_p - 1e-5) | (torch.arange(len(order)) == 0)]
    maybe = order[(before < top_p + 1e-5) | torch.tensor(top_p >= 1)]
    assert kept[sure].all()
    assert set(kept.nonzero().flatten().tolist()) <= set(maybe.tolist())


def test_truncation_is_per_row() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]]).repeat(3, 1)
    kept = truncate(logits, torch.tensor([1.0, 0.5, 1.0]), torch.tensor([0, 0, 2])).isfinite()
    assert kept.sum(-1).tolist() == [4, 1, 2]


def test_greedy_takes_the_first_of_equals() -> None:
    ids, logprobs = greedy(torch.tensor([[0.0, 5.0, 5.0]]))
    assert ids.tolist() == [1]
    assert logprobs.tolist() == torch.tensor([0.0, 5.0, 5.0]).log_softmax(-1)[1:2].tolist()


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**130])
def test_a_seed_names_a_stream(seed: int) -> None:
    assert np.array_equal(uniforms(seed, 5), uniforms(seed, 9)[:5])
    assert not np.array_equal(uniforms(seed, 5), uniforms(seed + 1, 5))
    assert uniforms(seed, 1000).max() <= 1 - 2**-32


def test_no_seed_is_fresh_every_time() -> None:
    assert not np.array_equal(uniforms(None, 4), uniforms(None, 4))
