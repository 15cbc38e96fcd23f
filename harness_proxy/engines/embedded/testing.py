"""A Qwen3 of some ten thousand random weights, for tests: no download, no training, real sampling."""

from __future__ import annotations

import torch
from torch import Tensor

from palestra.harness_proxy.engines.embedded.qwen3 import Qwen3Config, weight_shapes

TINY = Qwen3Config(
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=256,
    rope_theta=10_000.0,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)


def random_weights(config: Qwen3Config = TINY, seed: int = 0) -> dict[str, Tensor]:
    """Weights by Hugging Face name, large enough that the next token depends on all tokens before it."""
    generator = torch.Generator().manual_seed(seed)

    def draw(shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        return 0.25 * noise if len(shape) > 1 else 1.0 + 0.1 * noise

    return {name: draw(shape) for name, shape in weight_shapes(config).items()}
