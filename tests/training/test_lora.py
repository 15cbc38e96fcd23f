"""Adapters: they alone are trained, the published weights have them worked in, a checkpoint brings them back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from palestra.training.batch import Batch, make_batch
from palestra.training.config import TrainConfig
from palestra.training.lora import Lora
from palestra.training.policy import Policy, PolicyOptions
from palestra.training.update import Updater
from palestra.trajectories.sample import Sample

MakeSample = Callable[..., Sample]
OPTIONS = PolicyOptions(lora=Lora(rank=4, alpha=8))


@pytest.fixture
def batch(make_sample: MakeSample) -> Batch:
    samples = [make_sample(f"r{i}", prompt=6, replies=[4, 3]) for i in range(4)]
    return make_batch(
        samples, {(s.rollout_id, k): (-1.0) ** i for i, s in enumerate(samples) for k in (0, 1)}
    )


@pytest.fixture
def trained(model_dir: Path, batch: Batch) -> Policy:
    policy = Policy.load(model_dir, OPTIONS)
    updater = Updater(policy, TrainConfig(optimizer="adamw", matrix_lr=0.01, max_logprob_gap=1e9))
    for _ in range(3):
        updater.run([batch], 0)
    return policy


def logprobs(policy: Policy, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([policy.logprobs(rows)[0] for rows in batch.micro_batches(1 << 20)])


def test_at_first_adapters_change_nothing(model_dir: Path, batch: Batch) -> None:
    adapted, plain = Policy.load(model_dir, OPTIONS), Policy.load(model_dir)
    torch.testing.assert_close(logprobs(adapted, batch), logprobs(plain, batch))
    assert adapted.weights().keys() == plain.weights().keys()


def test_only_adapters_move(trained: Policy, model_dir: Path) -> None:
    before, after = Policy.load(model_dir, OPTIONS).state(), trained.state()
    moved = {name for name in before if ".lora_B" in name and not torch.equal(before[name], after[name])}
    assert moved
    assert all(torch.equal(before[n], after[n]) for n in before if ".lora_" not in n)


def test_the_published_weights_compute_what_the_policy_does(
    trained: Policy, model_dir: Path, batch: Batch
) -> None:
    served = Policy.load(model_dir)
    assert not torch.allclose(logprobs(served, batch), logprobs(trained, batch), atol=1e-3)
    served.model.load_state_dict(trained.weights())
    torch.testing.assert_close(logprobs(served, batch), logprobs(trained, batch), atol=1e-5, rtol=1e-5)


def test_a_saved_policy_serves_alone_and_goes_on_with_its_adapters(
    trained: Policy, model_dir: Path, batch: Batch, tmp_path: Path
) -> None:
    trained.save(tmp_path, tokenizer=model_dir / "tokenizer.json")
    expected = logprobs(trained, batch)
    torch.testing.assert_close(logprobs(Policy.load(tmp_path), batch), expected, atol=1e-5, rtol=1e-5)
    resumed = Policy.load(model_dir, OPTIONS)
    resumed.load_weights(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(trained.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize("layout", ["rows", "tree"])
@pytest.mark.parametrize(
    "saving",
    [PolicyOptions(gradient_checkpointing=True), PolicyOptions(offload_activations=True)],
    ids=["checkpointing", "offload"],
)
def test_saving_memory_changes_no_gradient(
    model_dir: Path, batch: Batch, layout: str, saving: PolicyOptions
) -> None:
    grads = []
    for options in (PolicyOptions(), saving):
        policy = Policy.load(model_dir, options)
        for rows in batch.micro_batches(1 << 20, layout):
            chosen, _ = policy.logprobs(rows)
            (chosen * rows.advantages).sum().backward()  # type: ignore[no-untyped-call]
        grads.append(torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]))
    torch.testing.assert_close(grads[0], grads[1], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("layout", ["rows", "tree"])
def test_bfloat16_computes_nearly_the_same(model_dir: Path, batch: Batch, layout: str) -> None:
    exact, rough = Policy.load(model_dir), Policy.load(model_dir, PolicyOptions(bf16=True))
    assert all(p.dtype == torch.float32 for p in rough.parameters())
    for rows in batch.micro_batches(1 << 20, layout):
        found, _ = rough.logprobs(rows)
        torch.testing.assert_close(found, exact.logprobs(rows)[0], atol=0.05, rtol=0.01)
        found.sum().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in rough.parameters())
