"""Packing samples, weighing tokens, cutting micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.training.batch import make_batch
from palestra.training.layouts import layouts
from palestra.trajectories.sample import Sample

MakeSample = Callable[..., Sample]

SHAPES = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 6), min_size=1, max_size=3)), min_size=1, max_size=8
)


def numbered(make_sample: MakeSample, shapes: Sequence[tuple[int, Sequence[int]]]) -> list[Sample]:
    return [make_sample(f"r{i}", prompt=p, replies=r) for i, (p, r) in enumerate(shapes)]


def credit(samples: Sequence[Sample]) -> dict[tuple[str, int], float]:
    """A different advantage for each decision."""
    keys = [(s.rollout_id, int(q)) for s in samples for q in sorted(set(s.calls[s.loss_mask].tolist()))]
    return {key: 1.0 + i for i, key in enumerate(keys)}


@given(shapes=SHAPES)
def test_a_batch_is_its_samples_end_to_end(
    make_sample: MakeSample, shapes: list[tuple[int, list[int]]]
) -> None:
    samples = numbered(make_sample, shapes)
    batch = make_batch(samples, credit(samples))
    assert len(batch) == len(samples)
    for sample, start, stop in zip(samples, batch.offsets, batch.offsets[1:], strict=False):
        assert np.array_equal(batch.ids[start:stop], sample.ids)
        assert np.array_equal(batch.loss_mask[start:stop], sample.loss_mask)
        assert np.array_equal(batch.logprobs[start:stop], sample.logprobs)


@pytest.mark.parametrize("layout", layouts)
@given(shapes=SHAPES, budget=st.integers(1, 60))
def test_cutting_loses_and_repeats_nothing(
    make_sample: MakeSample, shapes: list[tuple[int, list[int]]], budget: int, layout: str
) -> None:
    samples = numbered(make_sample, shapes)
    batch = make_batch(samples, credit(samples))
    cut = list(batch.micro_batches(budget, layout))
    for part in cut:
        assert part.positions <= budget or len(set(part.sequence.tolist())) == 1
        assert len(part.targets) == len(part.logprobs) == len(part.advantages) == len(part.weights)
    for name in ("logprobs", "advantages", "weights"):
        got = np.sort(np.concatenate([getattr(rows, name).numpy() for rows in cut]))
        assert np.array_equal(got, np.sort(getattr(batch, name)[batch.loss_mask]))
    tokens = np.concatenate([part.targets.numpy() for part in cut])
    assert sorted(tokens) == sorted(batch.ids[batch.loss_mask])


@given(shapes=SHAPES)
def test_tokens_stay_with_their_numbers(make_sample: MakeSample, shapes: list[tuple[int, list[int]]]) -> None:
    samples = numbered(make_sample, shapes)
    batch = make_batch(samples, credit(samples))
    known = dict(
        zip(batch.logprobs[batch.loss_mask].tolist(), batch.ids[batch.loss_mask].tolist(), strict=True)
    )
    for rows in batch.micro_batches(40):
        for logprob, token in zip(rows.logprobs.tolist(), rows.targets.tolist(), strict=True):
            assert known[logprob] == token


def test_advantages_are_those_of_the_decision(make_sample: MakeSample) -> None:
    sample = make_sample("r", prompt=2, replies=[2, 1])
    batch = make_batch([sample], {("r", 0): 0.5, ("r", 1): -1.0})
    assert batch.advantages.tolist() == [0, 0, 0.5, 0.5, 0, 0, -1, 0, 0]


def test_a_trained_call_without_an_advantage_is_an_error(make_sample: MakeSample) -> None:
    with pytest.raises(KeyError):
        make_batch([make_sample("r", replies=[2, 1])], {("r", 0): 0.5})


def test_context_needs_no_advantage(make_sample: MakeSample) -> None:
    """A branch that shares a sampled reply with another shows it as context."""
    sample = make_sample("r", replies=[2, 1])
    mask = sample.loss_mask & (sample.calls == 1)
    shared = Sample(sample.rollout_id, 0, sample.ids, mask, sample.logprobs, sample.calls, sample.versions)
    assert make_batch([shared], {("r", 1): 1.0}).advantages.sum() == 1.0


class TestWeights:
    @pytest.mark.parametrize("aggregation", ["token-mean", "rollout-mean"])
    @given(shapes=SHAPES)
    def test_they_sum_to_one_over_the_loss_mask(
        self, make_sample: MakeSample, aggregation: str, shapes: list[tuple[int, list[int]]]
    ) -> None:
        samples = numbered(make_sample, shapes)
        batch = make_batch(samples, credit(samples), aggregation)  # type: ignore[arg-type]
        assert batch.weights[batch.loss_mask].sum() == pytest.approx(1.0, abs=1e-6)
        assert (batch.weights[~batch.loss_mask] == 0).all()
        assert (batch.weights[batch.loss_mask] > 0).all()

    def test_sums_are_over_a_constant(self, make_sample: MakeSample) -> None:
        samples = [make_sample("a", replies=[3]), make_sample("b", replies=[1])]
        by_rollout = make_batch(samples, credit(samples), "rollout-sum")
        assert by_rollout.weights[by_rollout.loss_mask].tolist() == [0.5] * 4
        by_length = make_batch(samples, credit(samples), "token-sum", horizon_tokens=8)
        assert by_length.weights[by_length.loss_mask].tolist() == [1 / 16] * 4

    def test_token_mean_counts_tokens(self, make_sample: MakeSample) -> None:
        samples = [make_sample("a", replies=[3]), make_sample("b", replies=[1])]
        batch = make_batch(samples, credit(samples))
        assert batch.weights[batch.loss_mask].tolist() == [0.25] * 4

    def test_rollout_mean_counts_rollouts_whatever_their_tokens_and_branches(
        self, make_sample: MakeSample
    ) -> None:
        samples = [
            make_sample("a", replies=[3]),
            make_sample("a", replies=[1], first_call=1),
            make_sample("b", replies=[1]),
        ]
        batch = make_batch(samples, credit(samples), "rollout-mean")
        assert batch.weights[batch.loss_mask].tolist() == [0.125] * 4 + [0.5]

    def test_a_rollout_without_loss_tokens_has_no_share(self, make_sample: MakeSample) -> None:
        a, b = make_sample("a", replies=[2]), make_sample("b", replies=[1])
        b = Sample(b.rollout_id, 0, b.ids, b.loss_mask & False, b.logprobs, b.calls, b.versions)
        batch = make_batch([a, b], credit([a]), "rollout-mean")
        assert batch.weights[batch.loss_mask].tolist() == [0.5, 0.5]

    def test_an_unknown_aggregation_is_refused(self, make_sample: MakeSample) -> None:
        sample = make_sample("a")
        with pytest.raises(ValueError, match="one of token-mean, rollout-mean, .*, got 'sum'"):
            make_batch([sample], credit([sample]), "sum")  # type: ignore[arg-type]
