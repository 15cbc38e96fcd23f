"""Token ids to text for byte-level tokenizers, without the tokenizer: a table of bytes.

In a byte-level vocabulary each character of a token stands for one byte (the table is GPT-2's, `bytes_to_unicode` of
its encoder.py); a token with any other character, as added tokens may have, stands for its own UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def _byte_of_character() -> dict[str, int]:
    """Printable characters of Latin-1 stand for themselves, the other bytes for the characters from U+0100 on."""
    themselves = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in set(themselves))
    table = {chr(byte): byte for byte in themselves}
    return table | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_of_character()


class ByteLevelText(dict[int, bytes]):
    """The bytes of each token, filled in as they are asked for."""

    def __init__(self, token_of: Callable[[int], str | None]) -> None:
        super().__init__()
        self._token_of = token_of

    def __missing__(self, token_id: int) -> bytes:
        token = self._token_of(token_id)
        if token is None:  # as `tokenizers` does, ids outside the vocabulary say nothing
            return b""
        try:
            piece = bytes(map(_BYTES.__getitem__, token))
        except KeyError:
            piece = token.encode()
        self[token_id] = piece
        return piece

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.__getitem__, ids)).decode("utf-8", "replace")
