"""The forward pass of Qwen3 over a preallocated key-value cache, in as few torch operations as it takes.

Equal to `transformers.Qwen3ForCausalLM` in float32 to 1e-5 on the logits. Three things differ from the
reference and none changes the result: q, k and v are one matrix, and so are gate and up; the two halves of
each rotary pair are stored next to each other, so that a rotation is one complex product; the query heads
that share a key-value head are extra query positions of it, so grouped-query attention is plain attention.

It is not a training model: there is no autograd, no dropout and no padding token.
Source: Qwen3 technical report (arXiv 2505.09388) and transformers/models/qwen3/modeling_qwen3.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from palestra.harness_proxy.engines.embedded.cache import KeyValueRows


class UnsupportedModelError(ValueError):
    """Raised when a model is not one that the embedded engine computes exactly."""

    def __init__(self, what: str, got: object, allowed: object) -> None:
        super().__init__(
            f"the embedded engine cannot run this model: {what} is {got!r}, it supports {allowed!r}. "
            "Serve the model with vLLM (`vllm serve MODEL`) and use its URL as the engine instead."
        )
        self._arguments = (what, got, allowed)

    def __reduce__(self) -> tuple[type[UnsupportedModelError], tuple[str, object, object]]:
        return UnsupportedModelError, self._arguments


@dataclass(frozen=True, slots=True)
class Qwen3Config:
    """The sizes of a Qwen3 model, under the names of its config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Qwen3Config:
        """From a config.json or `PretrainedConfig.to_dict()`. Raises UnsupportedModelError."""
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        _refuse_variants(config, rope)
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_hidden_layers=config["num_hidden_layers"],
            num_attention_heads=config["num_attention_heads"],
            num_key_value_heads=config["num_key_value_heads"],
            head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
            max_position_embeddings=config["max_position_embeddings"],
            rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
            rms_norm_eps=config["rms_norm_eps"],
            tie_word_embeddings=config.get("tie_word_embeddings", False),
        )

    @property
    def heads(self) -> tuple[int, int, int]:
        """Numbers of query heads, key heads and value heads."""
        return self.num_attention_heads, self.num_key_value_heads, self.num_key_value_heads


def _refuse_variants(config: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    for what, got, allowed in (
        ("model_type", config.get("model_type"), "qwen3"),
        ("rope_type", rope.get("rope_type", "default"), "default"),
        ("hidden_act", config.get("hidden_act", "silu"), "silu"),
        ("attention_bias", config.get("attention_bias", False), False),
        ("use_sliding_window", config.get("use_sliding_window", False), False),
        ("quantization_config", config.get("quantization_config"), None),
    ):
        if got != allowed:
            raise UnsupportedModelError(what, got, allowed)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer's weights, fused; matrices are (out, in) or, where named `_t`, (in, out)."""

    input_norm: Tensor
    qkv: Tensor
    qk_norm: Tensor  # (query heads + key heads, head_dim)
    output_t: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down_t: Tensor


class Qwen3:
    """One immutable set of weights and the forward pass over it. A new policy version is a new object."""

    def __init__(
        self, config: Qwen3Config, weights: Mapping[str, Tensor], device: str | torch.device
    ) -> None:
        """Copies `weights` (Hugging Face names, any float type) as float32. Raises ValueError."""
        _check_weights(config, weights)
        self.config, self.device = config, torch.device(device)
        with torch.inference_mode():
            named = {name: _own(weights[name], self.device) for name in weight_shapes(config)}
            self._layers = [_fuse(config, named, index) for index in range(config.num_hidden_layers)]
        self._embed = named["model.embed_tokens.weight"]
        self._norm = named["model.norm.weight"]
        self._head = self._embed if config.tie_word_embeddings else named["lm_head.weight"]

    def forward(
        self, tokens: Tensor, positions: Tensor, last: Tensor | None, rows: KeyValueRows, rotary: Tensor
    ) -> Tensor:
        """Logits (n, vocabulary) after column `last` of each row; writes the keys and values of all columns.

        tokens, positions: (n, columns) int64, of the rows in `rows`; last: (n,) int64, None with one column.
        rotary: (context, head_dim / 2) complex64, from `rotary_table`.
        """
        plan = _Plan(self.config, positions, rows, rotary)
        x = F.embedding(tokens, self._embed)
        for index, layer in enumerate(self._layers):
            x = self._layer(x, layer, plan, rows.keys[index], rows.values[index])
        x = x[:, 0] if last is None else x[torch.arange(len(x), device=self.device), last]
        return F.linear(self._rms(x, self._norm), self._head)

    def _layer(self, x: Tensor, layer: Layer, plan: _Plan, keys: Tensor, values: Tensor) -> Tensor:
        flat = x.view(-1, x.shape[-1])
        q, k, v = self._project(self._rms(flat, layer.input_norm), layer, plan)
        plan.write(keys, k)
        plan.write(values, v)
        flat = torch.addmm(flat, plan.attend(q, keys, values), layer.output_t)
        gate, up = F.linear(self._rms(flat, layer.mlp_norm), layer.gate_up).chunk(2, -1)
        return torch.addmm(flat, F.silu(gate).mul_(up), layer.down_t).view_as(x)

    def _project(self, x: Tensor, layer: Layer, plan: _Plan) -> tuple[Tensor, ...]:
        """Normalised, rotated queries and keys, and values: each (tokens, heads, head_dim)."""
        n_q, n_k, n_v = self.config.heads
        dim = self.config.head_dim
        heads = F.linear(x, layer.qkv).view(-1, n_q + n_k + n_v, dim)
        qk = F.rms_norm(heads[:, : n_q + n_k], (dim,), None, self.config.rms_norm_eps).mul_(layer.qk_norm)
        rotated = torch.view_as_complex(qk.view(-1, n_q + n_k, dim // 2, 2)).mul_(plan.rotation)
        qk = torch.view_as_real(rotated).view(-1, n_q + n_k, dim)
        return qk[:, :n_q], qk[:, n_q:], heads[:, n_q + n_k :]

    def _rms(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.rms_norm_eps)


class _Plan:
    """What all layers of one forward pass share: rotation, where to write, and what may be attended to."""

    def __init__(self, config: Qwen3Config, positions: Tensor, rows: KeyValueRows, rotary: Tensor) -> None:
        self._n, self._columns = positions.shape
        self._dim, self._n_k = config.head_dim, config.num_key_value_heads
        self._group = config.num_attention_heads // config.num_key_value_heads
        self.rotation = rotary[positions.reshape(-1)].unsqueeze(1)
        self._slots = rows.slots(positions)
        self._length = rows.length
        hidden = torch.arange(self._length, device=positions.device) > positions.unsqueeze(-1)
        bias = torch.zeros(hidden.shape, device=positions.device).masked_fill_(hidden, float("-inf"))
        self._bias = bias.unsqueeze(1) if self._columns == 1 else bias.repeat(1, self._group, 1).unsqueeze(1)

    def write(self, cache: Tensor, new: Tensor) -> None:
        """Store new (tokens, key heads, head_dim) into a layer's (rows, key heads, capacity, head_dim)."""
        cache.view(-1, self._dim).index_copy_(0, self._slots, new.reshape(-1, self._dim))

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention output (tokens, query heads * head_dim)."""
        n, columns, group, dim = self._n, self._columns, self._group, self._dim
        q = q.view(n, columns, self._n_k, group, dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(n, self._n_k, group * columns, dim)
        k, v = keys[:n, :, : self._length], values[:n, :, : self._length]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self._bias)
        out = out.view(n, self._n_k, group, columns, dim).permute(0, 3, 1, 2, 4)
        return out.reshape(n * columns, -1)


def rotary_table(config: Qwen3Config, length: int, device: str | torch.device) -> Tensor:
    """exp(i * position * frequency), (length, head_dim / 2) complex64."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    angles = torch.outer(torch.arange(length).float(), 1.0 / config.rope_theta**exponents)
    return torch.polar(torch.ones_like(angles), angles).to(device)


def weight_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight, as Hugging Face names them."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    n_q, n_k, n_v = config.heads
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for index in range(config.num_hidden_layers):
        shapes |= {
            f"model.layers.{index}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (hidden,),
                "self_attn.q_proj": (n_q * dim, hidden),
                "self_attn.k_proj": (n_k * dim, hidden),
                "self_attn.v_proj": (n_v * dim, hidden),
                "self_attn.q_norm": (dim,),
                "self_attn.k_norm": (dim,),
                "self_attn.o_proj": (hidden, n_q * dim),
                "post_attention_layernorm": (hidden,),
                "mlp.gate_proj": (inner, hidden),
                "mlp.up_proj": (inner, hidden),
                "mlp.down_proj": (hidden, inner),
            }.items()
        }
    shapes["model.norm.weight"] = (hidden,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def _check_weights(config: Qwen3Config, weights: Mapping[str, Tensor]) -> None:
    shapes = weight_shapes(config)
    missing = sorted(shapes.keys() - weights.keys())
    extra = sorted(weights.keys() - shapes.keys() - {"lm_head.weight"})
    if missing or extra:
        raise ValueError(f"these are not this model's weights: missing {missing[:3]}, unknown {extra[:3]}")
    for name, shape in shapes.items():
        if tuple(weights[name].shape) != shape:
            raise ValueError(f"{name} has shape {tuple(weights[name].shape)}, the config says {shape}")


def _own(tensor: Tensor, device: torch.device) -> Tensor:
    """A float32 copy that the caller's later changes do not reach."""
    return tensor.detach().to(device=device, dtype=torch.float32, copy=True).contiguous()


def _fuse(config: Qwen3Config, named: Mapping[str, Tensor], index: int) -> Layer:
    def weight(name: str) -> Tensor:
        return named[f"model.layers.{index}.{name}.weight"]

    n_q, n_k, _ = config.heads
    q_norm, k_norm = (_pair(config, weight(f"self_attn.{name}_norm")) for name in "qk")
    q, k = (_pair(config, weight(f"self_attn.{name}_proj")) for name in "qk")
    return Layer(
        input_norm=weight("input_layernorm"),
        qkv=torch.cat([q, k, weight("self_attn.v_proj")]),
        qk_norm=torch.cat([q_norm.expand(n_q, -1), k_norm.expand(n_k, -1)]),
        output_t=weight("self_attn.o_proj").t().contiguous(),
        mlp_norm=weight("post_attention_layernorm"),
        gate_up=torch.cat([weight("mlp.gate_proj"), weight("mlp.up_proj")]),
        down_t=weight("mlp.down_proj").t().contiguous(),
    )


def _pair(config: Qwen3Config, rows: Tensor) -> Tensor:
    """Reorder each head's rows so that the halves of a rotary pair, i and i + head_dim/2, are neighbours."""
    halves = rows.view(-1, 2, config.head_dim // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)
