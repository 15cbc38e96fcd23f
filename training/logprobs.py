"""Log-probabilities of chosen tokens without the vocabulary at full length.

Logits in float32 for N tokens and V entries take 4 N V bytes, and a softmax with its gradient three times that: at
V = 151,936 it is most of a training step's memory. Here a chunk of tokens at a time meets the vocabulary, forward and
again backward; what is kept between the two is one number per token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LOGITS = {"cpu": 2**22, "cuda": 2**27}
"""Logits that exist at once. On the CPU 16 MB in float32, which are 27 tokens at V = 151,936; on a GPU 512 MB, since
fewer tokens would leave it waiting for the weights."""


def chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(log p(target), entropy in nats), both (N,) in float32 or what is more precise, of softmax(logits / temperature).

    hidden (N, H), weight (V, H), bias (V,), targets int64 (N,); logits = hidden @ weight.T + bias, and with `softcap` c
    c * tanh(logits / c) as Gemma 2 has it. Differentiable in hidden, weight and bias. Equal to log_softmax up to
    rounding (tests/training/test_logprobs.py). `chunk` tokens meet the vocabulary at once, by default as many as give
    `LOGITS`. Raises ValueError for a temperature or chunk that is not positive.
    """
    chunk = max(LOGITS[hidden.device.type] // len(weight), 1) if chunk is None else chunk
    if not temperature > 0 or chunk < 1:
        raise ValueError(
            f"temperature and chunk must be positive, got {temperature} and {chunk}: greedy replies have "
            "no log-probabilities to train"
        )
    out: tuple[Tensor, Tensor] = _Chunked.apply(hidden, weight, bias, targets, temperature, softcap, chunk)  # type: ignore[no-untyped-call]
    return out


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        softcap: float | None,
        chunk: int,
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(hidden), dtype=_precise(hidden), device=hidden.device)
        entropy, normaliser = torch.empty_like(logprobs), torch.empty_like(logprobs)
        for part in _parts(len(hidden), chunk):
            logits = _logits(hidden[part], weight, bias, softcap).div_(temperature)
            normaliser[part] = torch.logsumexp(logits, -1)
            logits.sub_(normaliser[part, None])
            logprobs[part] = logits.gather(-1, targets[part, None])[:, 0]
            entropy[part] = -torch.linalg.vecdot(logits.exp(), logits)
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser, entropy)
        ctx.temperature, ctx.softcap, ctx.chunk = temperature, softcap, chunk
        ctx.set_materialize_grads(False)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normaliser, entropy = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        grad_bias = torch.zeros_like(bias) if wants_bias else None
        for part in _parts(len(hidden), ctx.chunk):
            logits = _logits(hidden[part], weight, bias, ctx.softcap)
            slope = None if ctx.softcap is None else 1.0 - (logits / ctx.softcap) ** 2
            log_p = logits.div_(ctx.temperature).sub_(normaliser[part, None])
            grad = _slopes(log_p, targets[part], entropy[part], *(g if g is None else g[part] for g in grads))
            grad = grad.div_(ctx.temperature)
            grad = (grad if slope is None else grad.mul_(slope)).to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ weight
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, hidden[part])
            if grad_bias is not None:
                grad_bias += grad.sum(0)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None


def _slopes(
    log_p: Tensor, targets: Tensor, entropy: Tensor, of_logprob: Tensor | None, of_entropy: Tensor | None
) -> Tensor:
    """Gradient with respect to the scaled logits, in the memory of `log_p` where no entropy has one."""
    if of_entropy is None:
        grad = log_p.exp_()
    else:
        p = log_p.exp()
        grad = p * (log_p + entropy[:, None]) * -of_entropy[:, None]
        if of_logprob is None:
            return grad
        grad.sub_(p * of_logprob[:, None])
        grad[torch.arange(len(grad)), targets] += of_logprob
        return grad
    assert of_logprob is not None
    grad.mul_(-of_logprob[:, None])
    grad[torch.arange(len(grad)), targets] += of_logprob
    return grad


def _parts(size: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, size)) for start in range(0, size, chunk)]


def _precise(hidden: Tensor) -> torch.dtype:
    return torch.promote_types(hidden.dtype, torch.float32)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias).to(_precise(hidden))
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)
