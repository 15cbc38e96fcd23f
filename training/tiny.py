"""A tokenizer and a randomly initialised Qwen3 small enough to learn on two CPU cores.

The tokenizer has the special tokens of the Qwen3 family, every byte, one token for each word that the task pack
varies, and one for each fragment of fixed text between those words (as in SuperBPE, Liu et al. 2025,
arXiv:2503.13423, tokens may span several words). Prompts and tool calls then cost tokens only where they say
something; any other text still encodes, byte by byte.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
]


ROLES = ("system", "user", "assistant")


def byte_tokenizer() -> Tokenizer:
    """Qwen3's special tokens and one token per byte; no merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS])
    return tokenizer


def phrase_tokenizer(texts: Iterable[str], words: Sequence[str], *, min_count: int = 3) -> Tokenizer:
    """`byte_tokenizer` plus `words` and the fixed fragments between them that occur `min_count` times in `texts`.

    Numbers never become part of a fragment.
    """
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken(r, normalized=False) for r in ROLES])
    tokenizer.add_tokens([AddedToken(w, normalized=False) for w in words])
    fragments = _fragments(texts, words)
    kept = sorted(f for f, n in fragments.items() if n >= min_count and len(f) > 1)
    tokenizer.add_tokens([AddedToken(f, normalized=False) for f in kept])
    return tokenizer


def _fragments(texts: Iterable[str], words: Sequence[str]) -> Counter[str]:
    special = "|".join(map(re.escape, SPECIAL_TOKENS))
    boundary = re.compile(rf"{special}|(?<![a-z])(?:{'|'.join(words)})(?![a-z])|[0-9.]+")
    return Counter(f for text in texts for f in boundary.split(text) if f)


def save_model_dir(
    model_dir: Path,
    tokenizer: Tokenizer,
    *,
    seed: int,
    hidden: int = 128,
    layers: int = 3,
    heads: int = 4,
    context_tokens: int = 1024,
) -> None:
    """Write a random Qwen3 with `tokenizer` in Hugging Face layout."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from palestra.harness_proxy.engines.weights import save_weights

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=-(-tokenizer.get_vocab_size() // 8) * 8,
        hidden_size=hidden,
        intermediate_size=hidden * 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        max_position_embeddings=context_tokens,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
        bos_token_id=None,
        architectures=["Qwen3ForCausalLM"],
    )
    config.save_pretrained(str(model_dir))
    save_tokenizer(model_dir, tokenizer)
    save_weights(Qwen3ForCausalLM(config).state_dict(), model_dir / "model.safetensors")


def save_tokenizer(model_dir: Path, tokenizer: Tokenizer) -> None:
    """Write tokenizer.json and the minimum that says which family its template belongs to."""
    model_dir.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(model_dir / "tokenizer.json"))
    if not (model_dir / "config.json").exists():
        (model_dir / "config.json").write_bytes(orjson.dumps({"model_type": "qwen3"}))
