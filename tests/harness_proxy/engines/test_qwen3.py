"""The forward pass and the loader, against transformers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config as ReferenceConfig
from transformers import Qwen3ForCausalLM

from palestra.harness_proxy.engines.embedded.cache import KeyValueCache
from palestra.harness_proxy.engines.embedded.engine import TorchEngine
from palestra.harness_proxy.engines.embedded.qwen3 import (
    Qwen3,
    Qwen3Config,
    UnsupportedModelError,
    rotary_table,
    weight_shapes,
)
from palestra.trajectories.model import Sampling

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}


def reference(tied: bool = True, **sizes: Any) -> Any:
    """A transformers model with random weights large enough that its logits are far from equal."""
    torch.manual_seed(0)
    config = ReferenceConfig(**(SIZES | sizes), tie_word_embeddings=tied, rope_parameters={"rope_theta": 5e4})
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return model


def ours(model: Any) -> Qwen3:
    return Qwen3(Qwen3Config.from_dict(model.config.to_dict()), model.state_dict(), "cpu")


def new_cache(config: Qwen3Config, rows: int) -> KeyValueCache:
    heads, dim = config.num_key_value_heads, config.head_dim
    return KeyValueCache(config.num_hidden_layers, rows, heads, dim, 64, torch.device("cpu"))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("heads", "key_heads"), [(4, 2), (4, 4), (6, 1)])
def test_logits_equal_transformers(tied: bool, heads: int, key_heads: int) -> None:
    model = reference(tied, num_attention_heads=heads, num_key_value_heads=key_heads)
    qwen = ours(model)
    tokens = torch.randint(0, 97, (3, 20))
    with torch.inference_mode():
        expected = model(tokens).logits[:, -1]
        rows = new_cache(qwen.config, 3).rows(0, 3, 20)
        rotary = rotary_table(qwen.config, 64, "cpu")
        last = torch.full((3,), 19)
        logits = qwen.forward(tokens, torch.arange(20).expand(3, -1), last, rows, rotary)
    assert expected.std() > 0.5
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_decoding_and_ragged_prefill_equal_transformers() -> None:
    """Rows of 5, 9 and 13 tokens are prefilled together, padded on the right, and then grow by one token."""
    model = reference()
    qwen = ours(model)
    cache, rotary = new_cache(qwen.config, 3), rotary_table(qwen.config, 64, "cpu")
    tokens, lengths = torch.randint(0, 97, (3, 14)), torch.tensor([5, 9, 13])
    with torch.inference_mode():
        whole = [model(tokens[row : row + 1, : n + 1]).logits[0] for row, n in enumerate(lengths.tolist())]
        positions = torch.arange(13).expand(3, -1)
        first = qwen.forward(tokens[:, :13], positions, lengths - 1, cache.rows(0, 3, 13), rotary)
        new = tokens.gather(1, lengths.unsqueeze(1))
        second = qwen.forward(new, lengths.unsqueeze(1), None, cache.rows(0, 3, 14), rotary)
    torch.testing.assert_close(first, torch.stack([logits[-2] for logits in whole]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(second, torch.stack([logits[-1] for logits in whole]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", ["10MB", "20KB"])
async def test_loads_what_save_pretrained_writes(tmp_path: Path, tied: bool, shard: str) -> None:
    model = reference(tied)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard == "20KB")
    engine = TorchEngine.load(tmp_path, version=7)
    reply = await engine.generate([1, 2, 3], Sampling(temperature=0, max_tokens=8))
    await engine.aclose()
    ids = torch.tensor([[1, 2, 3, *reply.token_ids]])
    with torch.no_grad():
        logprobs = model(ids).logits[0, 2:-1].log_softmax(-1)
    assert reply.token_ids == logprobs.argmax(-1).tolist()
    torch.testing.assert_close(torch.tensor(reply.logprobs), logprobs.max(-1).values, atol=1e-5, rtol=0)
    assert reply.versions == ((0, 7),)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "llama"},
        {"attention_bias": True},
        {"hidden_act": "gelu"},
        {"use_sliding_window": True},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
        {"quantization_config": {"quant_method": "gptq"}},
    ],
)
def test_other_models_are_refused_and_vllm_is_named(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="vLLM"):
        Qwen3Config.from_dict(reference().config.to_dict() | change)


def test_a_directory_without_a_model_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json does not exist"):
        TorchEngine.load(tmp_path)
    reference().config.save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="no \\*.safetensors file"):
        TorchEngine.load(tmp_path)


def test_weights_that_do_not_fit_are_refused() -> None:
    config = Qwen3Config.from_dict(reference().config.to_dict())
    weights = {name: torch.zeros(shape) for name, shape in weight_shapes(config).items()}
    with pytest.raises(ValueError, match=r"missing \['model.norm.weight'\]"):
        Qwen3(config, {k: v for k, v in weights.items() if k != "model.norm.weight"}, "cpu")
    with pytest.raises(ValueError, match="unknown"):
        Qwen3(config, weights | {"model.layers.9.self_attn.q_proj.weight": torch.zeros(1)}, "cpu")
    with pytest.raises(ValueError, match="has shape"):
        Qwen3(config, weights | {"model.norm.weight": torch.zeros(3)}, "cpu")


def test_weight_shapes_are_those_of_transformers() -> None:
    model = reference(tied=False)
    config = Qwen3Config.from_dict(model.config.to_dict())
    assert {name: tuple(w.shape) for name, w in model.state_dict().items()} == weight_shapes(config)
    assert asdict(config)["rope_theta"] == 5e4


def test_changing_the_given_weights_later_changes_nothing() -> None:
    model = reference()
    qwen = ours(model)
    args = (
        torch.tensor([[1, 2]]),
        torch.tensor([[0, 1]]),
        torch.tensor([1]),
        new_cache(qwen.config, 1).rows(0, 1, 2),
        rotary_table(qwen.config, 64, "cpu"),
    )
    with torch.inference_mode():
        before = qwen.forward(*args)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    with torch.inference_mode():
        assert torch.equal(qwen.forward(*args), before)
