"""What must hold for every loss, correction and proximal policy, through the real update of a real model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from palestra.training.batch import Batch, make_batch
from palestra.training.config import TrainConfig
from palestra.training.layouts import Rows
from palestra.training.losses import corrections, losses
from palestra.training.policy import Policy
from palestra.training.proximal import proximals
from palestra.training.update import Updater
from palestra.trajectories.sample import Sample

MakeSample = Callable[..., Sample]
CONFIG = TrainConfig(max_logprob_gap=1e9, token_budget=1 << 20)
VERSION = 3
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"loss {name}": {"loss": name, "proximal": "loglinear"} for name in losses},
    **{f"correction {name}": {"correction": name, "proximal": "step"} for name in corrections},
    "correction sequence-mis": {
        "correction": "sequence-mis",
        "proximal": "step",
        "correction_options": {"upper": 1e6},
    },
    **{f"proximal {name}": {"proximal": name, "loss": "decoupled"} for name in proximals},
    **{f"kl {kind}": {"kl_weight": 0.1, "kl": kind} for kind in ("k1", "k2", "k3+")},
    "entropy": {"entropy_weight": 0.1},
    "token share": {"token_share": 0.5},
    **{a: {"aggregation": a} for a in ("rollout-mean", "rollout-sum", "token-sum")},
}
every = pytest.mark.parametrize("variant", VARIANTS)
quick = settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
SHAPES = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 6), min_size=1, max_size=3)), min_size=2, max_size=5
)


class Watched(Updater):
    """Keeps the gradients of an update and takes no step."""

    def _step(self, log_ratios: Tensor) -> float:
        self.gradient = torch.cat([p.grad.flatten() for p in self._policy.parameters() if p.grad is not None])
        self.seen_ratios = log_ratios
        return 0.0


@pytest.fixture(scope="module")
def double(model_dir: Any) -> Policy:
    policy = Policy.load(model_dir)
    policy.model.double()
    return policy


def gradient(policy: Policy, batch: Batch, variant: str, **changes: Any) -> Tensor:
    updater = Watched(policy, replace(CONFIG, **VARIANTS[variant], **changes))
    updater.run([batch], VERSION)
    return updater.gradient


def stale(make_sample: MakeSample, shapes: Sequence[tuple[int, Sequence[int]]]) -> list[Sample]:
    """Of policies of several ages, about as likely as the model finds them; the first two are of one rollout."""
    made = [
        make_sample(f"r{max(i - 1, 0)}", prompt=p, replies=r, first_call=10 * i)
        for i, (p, r) in enumerate(shapes)
    ]
    return [
        replace(
            s,
            logprobs=np.where(s.loss_mask, 0.3 * s.logprobs - 5.5, 0).astype(np.float32),
            versions=np.where(s.loss_mask, i % (VERSION + 1), -1).astype(np.int32),
        )
        for i, s in enumerate(made)
    ]


def pack(samples: Sequence[Sample], variant: str) -> Batch:
    seqs = {(s.rollout_id, int(q)) for s in samples for q in s.calls[s.loss_mask]}
    credit = {key: float(np.sin(key[1] + len(key[0]) + 1)) for key in seqs}
    return make_batch(samples, credit, VARIANTS[variant].get("aggregation", "token-mean"), 16)


@every
class TestEvery:
    @quick
    @given(shapes=SHAPES, budget=st.integers(1, 60))
    def test_splitting_into_micro_batches_changes_no_gradient(
        self, double: Policy, make_sample: MakeSample, variant: str, shapes: Any, budget: int
    ) -> None:
        batch = pack(stale(make_sample, shapes), variant)
        whole, cut = gradient(double, batch, variant), gradient(double, batch, variant, token_budget=budget)
        assert whole.abs().max() > 1e-4
        torch.testing.assert_close(cut, whole, rtol=0, atol=1e-6)

    @quick
    @given(shapes=SHAPES, seed=st.integers(0, 99))
    def test_the_order_of_samples_changes_no_gradient(
        self, double: Policy, make_sample: MakeSample, variant: str, shapes: Any, seed: int
    ) -> None:
        samples = stale(make_sample, shapes)
        order = np.random.default_rng(seed).permutation(len(samples))
        expected = gradient(double, pack(samples, variant), variant)
        shuffled = gradient(double, pack([samples[i] for i in order], variant), variant)
        torch.testing.assert_close(shuffled, expected, rtol=0, atol=1e-6)

    @quick
    @given(shapes=SHAPES, width=st.integers(20, 60))
    def test_context_without_loss_and_the_padding_it_brings_change_no_gradient(
        self, double: Policy, make_sample: MakeSample, variant: str, shapes: Any, width: int
    ) -> None:
        samples = stale(make_sample, shapes)
        other = make_sample("other", prompt=width)
        context = replace(other, loss_mask=np.zeros(len(other.ids), np.bool_))
        expected = gradient(double, pack(samples, variant), variant)
        padded = gradient(double, pack([*samples, context], variant), variant)
        torch.testing.assert_close(padded, expected, rtol=0, atol=1e-6)


def test_what_padding_holds_does_not_matter(double: Policy, make_sample: MakeSample) -> None:
    samples = stale(make_sample, [(3, [2]), (9, [4, 4])])
    [rows] = pack(samples, "entropy").micro_batches(1 << 20)
    assert isinstance(rows, Rows)
    lengths = torch.tensor(sorted((len(s.ids) for s in samples), reverse=True))
    beyond = torch.arange(rows.ids.shape[1])[None, :] >= lengths[:, None]
    assert bool(beyond.any())
    noisy = replace(rows, ids=torch.where(beyond, 7, rows.ids))
    with torch.no_grad():
        for got, expected in zip(double.logprobs(noisy), double.logprobs(rows), strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-9)


def test_a_token_of_this_version_that_differs_is_refused_and_an_older_one_is_not(
    double: Policy, make_sample: MakeSample
) -> None:
    from palestra.training.errors import UnfaithfulError

    batch = pack([make_sample("r0"), make_sample("r1")], "entropy")
    strict = replace(CONFIG, max_logprob_gap=0.01)
    assert Watched(double, strict).run([batch], VERSION)["logprob_gap"] == 0.0
    with pytest.raises(UnfaithfulError):
        Watched(double, strict).run([batch], 0)


class TestProximal:
    def test_an_average_of_one_policy_is_that_policy(self, double: Policy, make_sample: MakeSample) -> None:
        [rows] = pack([make_sample("r")], "entropy").micro_batches(1 << 20)
        averaged = proximals["ewma"]().before(double, rows)
        now = proximals["step"]().before(double, rows)
        assert averaged is not None and now is not None
        torch.testing.assert_close(averaged, now, rtol=0, atol=1e-9)

    def test_the_average_is_over_all_updates_and_leaves_the_policy_as_it_was(
        self, model_dir: Any, make_sample: MakeSample
    ) -> None:
        policy = Policy.load(model_dir)
        [rows] = pack([make_sample("r")], "entropy").micro_batches(1 << 20)
        average = proximals["ewma"](decay=0.5)
        average.updated(policy)
        before = {n: v.clone() for n, v in policy.weights().items()}
        with torch.no_grad():
            for p in policy.parameters():
                p.add_(1.0)
        moved = {n: v.clone() for n, v in policy.weights().items()}
        average.updated(policy)
        kept = average.state_dict()["weights"]
        for name, value in kept.items():
            torch.testing.assert_close(value, (0.5 * before[name] + moved[name]) / 1.5)
        average.before(policy, rows)
        assert all(torch.equal(v, moved[n]) for n, v in policy.weights().items())

        restored = proximals["ewma"](decay=0.5)
        restored.load_state_dict(average.state_dict())
        got, expected = restored.before(policy, rows), average.before(policy, rows)
        assert got is not None and expected is not None and torch.equal(got, expected)

    def test_a_decay_of_one_is_refused(self) -> None:
        with pytest.raises(ValueError, match="below 1, got 1"):
            proximals["ewma"](decay=1)


def test_the_step_is_scaled_by_the_effective_sample_size(model_dir: Any, make_sample: MakeSample) -> None:
    """One sequence that the current policy finds far likelier carries nearly all of the gradient."""
    policy = Policy.load(model_dir)
    samples = stale(make_sample, [(3, [2]), (3, [2]), (3, [2])])
    batch = pack(samples, "entropy")
    batch.logprobs[np.flatnonzero(batch.loss_mask)[:2]] -= 8.0
    updater = Watched(policy, replace(CONFIG, proximal="step", scale_by_ess=True))
    updater.run([batch], VERSION)
    assert updater.seen_ratios.shape == (3,)
    scales = list[float]()
    updater._optimizer.step = scales.append  # type: ignore[method-assign, assignment]
    Updater._step(updater, updater.seen_ratios)
    assert scales[0] == pytest.approx((1 / 3) ** 0.5, abs=0.02)


class TestTokenSelection:
    def test_at_least_one_of_each_sequence(self) -> None:
        from palestra.training.losses import informative_tokens

        kept = informative_tokens(
            torch.tensor([1.0, -3.0, 1.0, 0.0]),
            torch.tensor([1.0, 1.0, 2.0, 1.0]),
            torch.tensor([5, 5, 5, 2]),
            share=0.4,
        )
        assert kept.tolist() == [False, True, True, True]

    def test_a_share_of_nothing_is_refused(self) -> None:
        from palestra.training.losses import informative_tokens

        with pytest.raises(ValueError, match="share is above 0"):
            informative_tokens(torch.ones(1), torch.ones(1), torch.zeros(1), share=0.0)
