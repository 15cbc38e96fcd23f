"""How far probabilities are apart, measured and told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from palestra.training.batch import make_batch
from palestra.training.drift import Drift, drift
from palestra.training.errors import TrainingError
from palestra.training.policy import Policy, PolicyOptions
from palestra.trajectories.sample import Sample

MakeSample = Callable[..., Sample]


@pytest.fixture
def views(policy: Policy, make_sample: MakeSample) -> list[Sample]:
    """Samples whose recorded log-probabilities are the policy's."""
    samples = [make_sample(f"r{i}", prompt=5, replies=[4, 3]) for i in range(5)]
    batch = make_batch(samples, {(s.rollout_id, k): 1.0 for s in samples for k in (0, 1)})
    [rows] = batch.micro_batches(1 << 20, "packed")
    with torch.no_grad():
        exact = policy.logprobs(rows)[0].numpy()
    found = []
    for i, sample in enumerate(samples):
        logprobs = sample.logprobs.copy()
        logprobs[sample.loss_mask] = exact[rows.sequence.numpy() == i]
        found.append(replace(sample, logprobs=logprobs))
    return found


def test_the_same_weights_do_not_drift(policy: Policy, views: list[Sample]) -> None:
    found = drift(policy, views)
    assert found.tokens == 35
    assert found.largest < 1e-5 and found.kl < 1e-9 and found.ess > 0.9999
    assert [line.split(":")[0] for line in found.advice()] == ["none needed"]


def test_every_number_is_what_its_name_says(policy: Policy, views: list[Sample]) -> None:
    shifted = [replace(v, logprobs=v.logprobs - 0.1 * (i + 1)) for i, v in enumerate(views)]
    found = drift(policy, shifted)
    d = np.repeat([0.1, 0.2, 0.3, 0.4, 0.5], 7)
    assert found.mean == pytest.approx(d.mean(), abs=1e-5)
    assert found.largest == pytest.approx(0.5, abs=1e-5)
    assert found.p99 == pytest.approx(np.quantile(d, 0.99), abs=1e-5)
    assert found.kl == pytest.approx((np.exp(d) - 1 - d).mean(), abs=1e-5)
    weights = np.exp(7 * np.array([0.1, 0.2, 0.3, 0.4, 0.5]))
    assert found.ess == pytest.approx(weights.sum() ** 2 / (weights**2).sum() / 5, abs=1e-4)


def test_other_weights_are_told_from_other_precision(
    policy: Policy, views: list[Sample], model_dir: Path
) -> None:
    rough = drift(Policy.load(model_dir, PolicyOptions(bf16=True)), views)
    assert 1e-5 < rough.mean < 0.02
    policy.temperature = 0.5
    assert any("another temperature" in line for line in drift(policy, views).advice())


def test_every_advice_names_what_exists() -> None:
    from palestra.training.losses import corrections

    text = " ".join(Drift(10, 0.5, 1.0, 2.0, 0.5, 0.1).advice())
    named = {word.strip('",') for word in text.split() if word.startswith('"')}
    assert named <= set(corrections) and named


def test_nothing_to_compare_is_an_error(policy: Policy) -> None:
    with pytest.raises(TrainingError, match="no sampled token"):
        drift(policy, [])
