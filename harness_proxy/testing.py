"""A model directory small enough to make on the fly, for tests without downloads.

`make_tiny_tokenizer` trains a byte-level BPE of about 400 tokens with the special tokens of the Qwen3 chat
format. Any text survives encoding and decoding. It has no weights: pair it with
`engines.scripted.ScriptedEngine`, or write a model of the same vocabulary size beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import orjson

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKER_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

SENTENCES = (
    "You are a careful assistant. You may call one or more functions to assist with the user query.",
    "For each function call, return a json object with function name and arguments within XML tags.",
    '{"type": "function", "function": {"name": "run", "description": "", "parameters": {"type": "object"}}}',
    '{"name": "list_tables", "arguments": {}}',
    '{"name": "query", "arguments": {"sql": "SELECT count(*) FROM users"}}',
    "system\nuser\nassistant\n# Tools\n\nThe answer is 42.",
    "The table users has columns id, name and created_at.",
)


def make_tiny_tokenizer(
    directory: str | Path, *, vocab_size: int = 400, sentences: Sequence[str] = SENTENCES
) -> Path:
    """Write tokenizer.json to `directory`, and a config.json of model_type qwen3 unless there is one.

    `sentences` are what it learns from; with more of them, and a larger vocabulary, tokens are longer. Returns
    the directory. The result is the same on every machine.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKER_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKER_TOKENS])
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    if not (path / "config.json").exists():
        (path / "config.json").write_bytes(orjson.dumps({"model_type": "qwen3"}))
    return path
