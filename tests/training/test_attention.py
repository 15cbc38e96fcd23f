"""Hidden states and gradients of a forest against those of each sample alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from palestra.training import attention
from palestra.training.attention import NAME, Runs, register
from palestra.training.forest import Forest, by_prefix, forest, packed
from palestra.trajectories.model import IntArray

SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


def qwen3() -> Any:
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE))


def llama() -> Any:
    return LlamaForCausalLM(LlamaConfig(**SHAPE))


def gemma3() -> Any:
    """With a window that is shorter than the samples."""
    layers = ["sliding_attention", "full_attention"]
    return Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=12, layer_types=layers))


@pytest.fixture(scope="module")
def group() -> list[IntArray]:
    """Twelve branches over one root and four forks, a sample within another, and one twice."""
    random = np.random.default_rng(0)
    root = random.integers(0, 300, 20)
    forks = [np.concatenate([root, random.integers(0, 300, 6)]) for _ in range(4)]
    branches = [np.concatenate([fork, random.integers(0, 300, 3 + j)]) for fork in forks for j in range(3)]
    found = [b.astype(np.int32) for b in [*branches, root, branches[0]]]
    return [found[i] for i in by_prefix(found)]


def alone(model: Any, sample: IntArray) -> Tensor:
    hidden: Tensor = model.get_decoder()(input_ids=_ids(sample), use_cache=False).last_hidden_state
    return hidden[0]


def together(model: Any, trees: Forest) -> Tensor:
    runs = Runs(trees, torch.device("cpu"))
    out = model.get_decoder()(
        input_ids=_ids(trees.ids), position_ids=runs.positions[None], use_cache=False, runs=runs
    )
    hidden: Tensor = out.last_hidden_state
    return hidden[0]


def _ids(ids: IntArray) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))[None]


def gradient(model: nn.Module, hidden: list[Tensor]) -> Tensor:
    torch.cat(hidden).pow(3).sum().backward()  # type: ignore[no-untyped-call]
    grads = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return grads


@pytest.mark.parametrize("make", [qwen3, llama, gemma3])
@pytest.mark.parametrize("lay_out", [forest, packed])
def test_a_forest_computes_what_each_sample_alone_would(
    make: Any, lay_out: Any, group: list[IntArray]
) -> None:
    register()
    torch.manual_seed(0)
    model: Any = make().train()
    model.set_attn_implementation("eager")
    expected = [alone(model, s) for s in group]
    plain = gradient(model, expected)
    model.set_attn_implementation(NAME)
    trees = lay_out(group)
    hidden = together(model, trees)
    found = [hidden[torch.from_numpy(p.astype(np.int64))] for p in trees.paths]
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    shared = gradient(model, found)
    assert float((shared - plain).norm() / plain.norm()) < 1e-5


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 9])
def test_flex_attention_sees_what_the_loop_sees(
    monkeypatch: pytest.MonkeyPatch, group: list[IntArray], window: int | None
) -> None:
    from torch.nn.attention.flex_attention import create_mask, flex_attention

    trees = forest(group)
    runs = Runs(trees, torch.device("cpu"))
    size = len(trees)
    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, size, 8), torch.randn(1, 2, size, 8), torch.randn(1, 2, size, 8)
    looped = attention._per_sample(q, k, v, runs, None, window)
    mask = create_mask(lambda b, h, i, j: runs.visible(i, j, window), 1, 1, size, size, device="cpu")
    keys, values = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    masked = torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
    torch.testing.assert_close(looped, masked, atol=1e-5, rtol=1e-5)
    monkeypatch.setattr(attention, "_flex_attention", lambda: flex_attention)
    flexed = attention._flex(q, k, v, runs, None, window)
    torch.testing.assert_close(flexed, looped, atol=1e-5, rtol=1e-5)


def test_forgetting_the_runs_is_an_error() -> None:
    register()
    model: Any = qwen3()
    model.set_attn_implementation(NAME)
    with pytest.raises(ValueError, match="needs runs="):
        model(input_ids=torch.zeros(1, 3, dtype=torch.long))
