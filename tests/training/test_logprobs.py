"""Chunked log-probabilities against log_softmax."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from palestra.training.logprobs import chunked_logprobs


def plain(
    hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, temperature: float, softcap: float | None
) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.T + bias
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    log_p = torch.log_softmax(logits / temperature, -1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, targets[:, None])[:, 0], entropy


@pytest.mark.parametrize("chunk", [1, 5, None])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.0, 1.0), (1.0, -0.3)])
def test_values_and_gradients_are_those_of_log_softmax(
    chunk: int | None, temperature: float, softcap: float | None, weights: tuple[float, float]
) -> None:
    torch.manual_seed(0)
    hidden, weight, bias = (
        t.double().requires_grad_() for t in (torch.randn(17, 8), torch.randn(50, 8), torch.randn(50))
    )
    targets, slopes = torch.randint(0, 50, (17,)), torch.randn(17)

    def gradients(logprobs: Tensor, entropies: Tensor) -> tuple[Tensor, ...]:
        parts = [w * (x * slopes).sum() for w, x in zip(weights, (logprobs, entropies), strict=True) if w]
        return torch.autograd.grad(torch.stack(parts).sum(), (hidden, weight, bias))

    expected = plain(hidden, weight, bias, targets, temperature, softcap)
    found = chunked_logprobs(
        hidden, weight, targets, bias=bias, temperature=temperature, softcap=softcap, chunk=chunk
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    for a, b in zip(gradients(*found), gradients(*expected), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden = torch.randn(3, 4, requires_grad=True)
    weight = torch.randn(6, 4)
    chunked_logprobs(hidden, weight, torch.zeros(3, dtype=torch.long))[0].sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None and weight.grad is None


def test_bfloat16_stays_close_to_float32() -> None:
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(9, 16), torch.randn(40, 16) / 4, torch.randint(0, 40, (9,))
    exact, _ = chunked_logprobs(hidden, weight, targets)
    rough, _ = chunked_logprobs(hidden.bfloat16(), weight.bfloat16(), targets)
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, atol=0.1, rtol=0.05)


def test_no_tokens_are_fine() -> None:
    hidden = torch.zeros(0, 4, requires_grad=True)
    logprobs, entropy = chunked_logprobs(hidden, torch.randn(6, 4), torch.zeros(0, dtype=torch.long))
    assert logprobs.shape == entropy.shape == (0,)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"chunk": 0}])
def test_what_cannot_be_computed_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        chunked_logprobs(torch.zeros(1, 2), torch.zeros(3, 2), torch.zeros(1, dtype=torch.long), **options)  # type: ignore[arg-type]
