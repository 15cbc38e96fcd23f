"""Log-probabilities against a plain computation, and weights on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from palestra.training.batch import Batch, make_batch
from palestra.training.layouts import layouts
from palestra.training.losses import clipped_loss
from palestra.training.policy import Policy
from palestra.training.tiny import save_model_dir
from palestra.trajectories.sample import Sample

MakeSample = Callable[..., Sample]


@pytest.fixture
def samples(make_sample: MakeSample) -> list[Sample]:
    return [
        make_sample("a", prompt=5, replies=[4, 3]),
        make_sample("b", prompt=1, replies=[1]),
        make_sample("c", prompt=9, replies=[2, 2, 2]),
        make_sample("d", prompt=3, replies=[7]),
    ]


@pytest.fixture
def batch(samples: list[Sample]) -> Batch:
    return make_batch(samples, {(s.rollout_id, k): (-1.0) ** k + 0.1 for s in samples for k in range(3)})


def plain(policy: Policy, sample: Sample) -> tuple[Tensor, Tensor]:
    """(log-probabilities, entropies) of the loss tokens from the logits of the whole sequence."""
    logits = policy.model(input_ids=torch.from_numpy(sample.ids.astype(np.int64))[None]).logits[0].double()
    log_p = torch.log_softmax(logits / policy.temperature, -1)[:-1]
    mask = torch.from_numpy(sample.loss_mask[1:])
    chosen = log_p.gather(-1, torch.from_numpy(sample.ids[1:].astype(np.int64))[:, None])[:, 0]
    return chosen[mask], -(log_p.exp() * log_p).sum(-1)[mask]


@pytest.mark.parametrize("layout", layouts)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_a_plain_computation_padding_or_not(
    policy: Policy, samples: list[Sample], batch: Batch, temperature: float, layout: str
) -> None:
    policy.temperature = temperature
    by_recorded: dict[float, tuple[float, float]] = {}
    for sample in samples:
        for recorded, value, entropy in zip(
            sample.logprobs[sample.loss_mask].tolist(),
            *map(Tensor.tolist, plain(policy, sample)),
            strict=True,
        ):
            by_recorded[recorded] = value, entropy
    for budget in (1, 40, 1 << 20):
        for rows in batch.micro_batches(budget, layout):
            logprobs, entropies = policy.logprobs(rows)
            expected = np.array([by_recorded[r] for r in rows.logprobs.tolist()])
            assert logprobs.detach().numpy() == pytest.approx(expected[:, 0], abs=2e-6)
            assert entropies.detach().numpy() == pytest.approx(expected[:, 1], abs=5e-6)
            assert logprobs.dtype == torch.float32


def gradient(policy: Policy, batch: Batch, budget: int, layout: str = "rows") -> Tensor:
    policy.model.zero_grad()
    for rows in batch.micro_batches(budget, layout):
        logprobs, _ = policy.logprobs(rows)
        loss = clipped_loss(logprobs, logprobs.detach(), rows.advantages, rows.weights).loss
        loss.backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


@pytest.mark.parametrize("layout", layouts)
def test_neither_layout_nor_micro_batching_changes_the_gradient(
    policy: Policy, batch: Batch, layout: str
) -> None:
    whole = gradient(policy, batch, 1 << 20)
    assert float(whole.norm()) > 0.01
    for budget in (1, 30, 50, 1 << 20):
        torch.testing.assert_close(gradient(policy, batch, budget, layout), whole, rtol=0, atol=1e-6)


def test_branches_that_share_their_beginning_are_computed_once(policy: Policy) -> None:
    random = np.random.default_rng(0)
    shared = random.integers(0, 300, 40)
    branches = [
        Sample(
            rollout_id=f"r{i}",
            leaf=0,
            ids=np.concatenate([shared, random.integers(0, 300, 4 + i)]).astype(np.int32),
            loss_mask=np.arange(44 + i) >= 38,
            logprobs=np.where(np.arange(44 + i) >= 38, -1.0, 0.0).astype(np.float32),
            calls=np.where(np.arange(44 + i) >= 38, 0, -1).astype(np.int32),
            versions=np.zeros(44 + i, np.int32),
        )
        for i in range(6)
    ]
    batch = make_batch(branches, {(s.rollout_id, 0): (-1.0) ** i for i, s in enumerate(branches)})
    assert [part.positions for part in batch.micro_batches(1 << 20, "packed")] == [279]
    assert [part.positions for part in batch.micro_batches(1 << 20, "tree")] == [40 + 39]
    plain = gradient(policy, batch, 1 << 20)
    torch.testing.assert_close(gradient(policy, batch, 1 << 20, "tree"), plain, rtol=0, atol=1e-6)


def test_weights_on_disk(policy: Policy, model_dir: Path, tmp_path: Path) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.01)
    policy.save(tmp_path / "saved", tokenizer=model_dir / "tokenizer.json")
    saved = {path.name for path in (tmp_path / "saved").iterdir()}
    assert saved == {"config.json", "model.safetensors", "tokenizer.json"}
    loaded, restored = Policy.load(tmp_path / "saved"), Policy.load(model_dir)
    restored.load_weights(tmp_path / "saved")
    for name, value in policy.weights().items():
        assert torch.equal(loaded.weights()[name], value)
        assert torch.equal(restored.weights()[name], value)
    assert policy.num_parameters == loaded.num_parameters


def test_weights_that_do_not_fit_change_nothing(policy: Policy, model_dir: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    save_model_dir(tmp_path / "wider", tokenizer, seed=1, hidden=64, layers=2, heads=2)
    save_model_dir(tmp_path / "deeper", tokenizer, seed=1, hidden=32, layers=3, heads=2)
    before = {name: value.clone() for name, value in policy.weights().items()}
    for other in ("wider", "deeper"):
        with pytest.raises(OSError, match="does not fit this model"):
            policy.load_weights(tmp_path / other)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "model.safetensors").write_bytes(b"\x10")
    with pytest.raises(OSError, match="cannot be read"):
        policy.load_weights(tmp_path / "torn")
    with pytest.raises(OSError):
        policy.load_weights(tmp_path / "nowhere")
    assert all(torch.equal(policy.weights()[name], value) for name, value in before.items())


def test_no_model_there() -> None:
    with pytest.raises(OSError):
        Policy.load("/nowhere/at/all")
