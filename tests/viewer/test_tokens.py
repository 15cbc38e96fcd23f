"""Tokens become text without a character lost, broken or coloured by the wrong token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.trajectories.model import Message, Node
from palestra.viewer.tokens import pieces, runs, style_of


def decode_bytes(ids: Sequence[int]) -> str:
    """Each token one byte of UTF-8."""
    return bytes(ids).decode("utf-8", "replace")


def decode_words(ids: Sequence[int]) -> str:
    """Each token a word with a space before it, which is dropped at the beginning, as SentencePiece does."""
    return "".join(f" w{token}" for token in ids)[1:]


def node(text: bytes, mask: Sequence[bool], logprobs: Sequence[float]) -> Node:
    ids = np.frombuffer(text, np.uint8).astype(np.int32)
    return Node(0, None, Message("assistant"), ids, np.array(mask, np.bool_), np.array(logprobs, np.float32))


@given(st.text())
def test_pieces_join_to_the_text_and_each_is_whole(text: str) -> None:
    ids = list(text.encode())
    found = list(pieces(ids, decode_bytes))
    assert "".join(piece for _, piece in found) == text
    assert [count for count, _ in found] == [len(character.encode()) for character in text]


@given(st.lists(st.integers(0, 255), max_size=40))
def test_bytes_that_are_no_text_are_all_accounted_for(ids: list[int]) -> None:
    assert sum(count for count, _ in pieces(ids, decode_bytes)) == len(ids)


def test_the_space_before_a_token_is_kept() -> None:
    assert [piece for _, piece in pieces([1, 2, 3], decode_words)] == ["w1", " w2", " w3"]


@pytest.mark.parametrize(
    ("probability", "style"),
    [(1.0, "green"), (0.91, "green"), (0.6, "cyan"), (0.2, "yellow"), (0.01, "bold red")],
)
def test_the_colour_is_the_probability(probability: float, style: str) -> None:
    assert style_of(math.log(probability)) == style


@pytest.mark.parametrize("logprob", [-math.inf, math.nan, -1e9])
def test_a_strange_probability_stands_out(logprob: float) -> None:
    assert style_of(logprob) == "bold red"


def test_stretches_follow_the_mask() -> None:
    mask = [False] * 3 + [True] * 2 + [False]
    found = list(runs(node(b"<a>hi.", mask, [-0.01, -5.0]), decode_bytes, "utf-8"))
    assert [(sampled, text.plain) for sampled, text in found] == [(False, "<a>"), (True, "hi"), (False, ".")]
    assert [str(span.style) for span in found[1][1].spans] == ["green", "bold red"]


def test_a_character_of_several_tokens_has_the_colour_of_the_least_likely() -> None:
    ((_, text),) = runs(node("é".encode(), [True, True], [-0.01, -5.0]), decode_bytes, "utf-8")
    assert (text.plain, [str(span.style) for span in text.spans]) == ("é", ["bold red"])


def test_a_node_without_tokens_has_no_stretch() -> None:
    assert list(runs(node(b"", [], []), decode_bytes, "utf-8")) == []
