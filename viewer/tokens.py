"""Tokens as text, coloured by how likely the sampler thought they were."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from rich.text import Text

from palestra.trajectories.model import Node
from palestra.viewer.text import visible

Decode = Callable[[Sequence[int]], str]
"""Token ids to text; a token alone may be a part of a character."""

PROMPT_STYLE = "dim"
_STYLES = ((0.9, "green"), (0.5, "cyan"), (0.1, "yellow"), (0.0, "bold red"))
_UNFINISHED = "\ufffd"
_MOST_TOKENS_OF_A_CHARACTER = 8


def style_of(logprob: float) -> str:
    """Green for a token that was nearly certain, over cyan and yellow to red for one that was unlikely."""
    return next((style for bound, style in _STYLES if math.exp(logprob) >= bound), _STYLES[-1][1])


def legend() -> Text:
    """What the colours mean."""
    text = Text("probability of a sampled token:  ")
    for bound, style in _STYLES:
        text.append(f"{bound:.0%} or more  " if bound else "less", style)
    return text


def runs(node: Node, decode: Decode, encoding: str) -> Iterator[tuple[bool, Text]]:
    """(sampled, text) of each stretch of tokens that were all sampled or all given."""
    logprobs = np.zeros(len(node.token_ids), np.float32)
    logprobs[node.sampled] = node.logprobs
    edges = np.flatnonzero(np.diff(node.sampled)) + 1
    for start, end in zip([0, *edges], [*edges, len(node.token_ids)], strict=True):
        if start == end:
            continue
        ids, sampled = node.token_ids[start:end].tolist(), bool(node.sampled[start])
        if sampled:
            yield True, _coloured(ids, logprobs[start:end].tolist(), decode, encoding)
        else:
            yield False, Text(visible(decode(ids), encoding), PROMPT_STYLE)


def pieces(ids: Sequence[int], decode: Decode) -> Iterator[tuple[int, str]]:
    """(number of tokens, text) of the shortest stretches that decode to whole characters.

    Each is decoded behind the piece before it, since some tokenizers drop the space before a first token.
    """
    before = start = 0
    for end in range(1, len(ids) + 1):
        known, text = decode(ids[before:start]), decode(ids[before:end])
        unfinished = text.endswith(_UNFINISHED) and end - start < _MOST_TOKENS_OF_A_CHARACTER
        if unfinished and end < len(ids):
            continue
        yield end - start, text[len(known) :]
        before, start = start, end


def _coloured(ids: Sequence[int], logprobs: Sequence[float], decode: Decode, encoding: str) -> Text:
    text, place = Text(), 0
    for count, piece in pieces(ids, decode):
        text.append(visible(piece, encoding), style_of(min(logprobs[place : place + count])))
        place += count
    return text
