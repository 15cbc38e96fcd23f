"""The tokenizer of a local model directory, through the `tokenizers` library.

It has the small interface that `renderers` asks for. transformers, which takes seconds to import, is not
needed. It gives no character offsets on purpose: `renderers` then skips an attribution that nobody here
reads.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from palestra.harness_proxy.byte_level import ByteLevelText
from palestra.harness_proxy.errors import RenderingError

_CACHED_TEXT_CHARS = 65_536


class LocalTokenizer:
    """A `tokenizer.json` behind the small interface that `renderers` asks for.

    Encoding is a pure function of the text, so texts up to 64 KiB are kept: a system message with its tools
    is encoded once for all rollouts.
    """

    unk_token_id: int | None = None

    def __init__(self, path: Path, eos_token_id: int | None = None) -> None:
        """Raises RenderingError when `path` is missing or not a tokenizer."""
        from tokenizers import Tokenizer, decoders

        if not path.is_file():
            raise RenderingError(f"no {path.name} in {path.parent}: give the directory of a local model")
        self.name_or_path = str(path.parent)
        self.eos_token_id = eos_token_id
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises nothing more exact
            raise RenderingError(f"{path} is no tokenizer: {error}") from error
        self._cached_encode = lru_cache(maxsize=512)(self._encode)
        byte_level = isinstance(self._tokenizer.decoder, decoders.ByteLevel)
        self._bytes = ByteLevelText(self._tokenizer.id_to_token) if byte_level else None

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]:
        """Token ids of `text`, nothing added at its ends."""
        return list(self._cached_encode(text) if len(text) <= _CACHED_TEXT_CHARS else self._encode(text))

    def decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> str:
        """Text of `token_ids`, special tokens included."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        if self._bytes is not None:
            return self._bytes.decode(ids)
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """The id of one token, or of each in a list; None where it is not in the vocabulary."""
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(t) for t in tokens]

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
