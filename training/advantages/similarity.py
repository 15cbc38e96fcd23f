"""Anchors that are alike: clusters of texts, to be named as one state.

Two texts are alike where 2 * LCS / (length + length) reaches a threshold, LCS the length of their longest common
subsequence: what an edit that inserts and deletes leaves. Distinct texts are compared once, with bounds first and
then a bit-parallel LCS on what is left between their common ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any, Protocol

from palestra.training.advantages.compat import Compat, quirks


def similar_anchors(
    anchors: Sequence[str | None],
    group: Sequence[Hashable],
    *,
    threshold: float = 0.95,
    compat: Compat = None,
) -> list[Hashable]:
    """A name for the cluster of each anchor, for the column `anchor`; None stays None. Both of length S.

    Within each group, a text joins the first cluster whose first member is alike to `threshold`, or begins one. Texts
    are taken in sorted order, so that the order of the rows does not matter. Source: verl-agent
    gigpo/core_gigpo.py build_step_group, enable_similarity.

    Departures: the authors take texts in row order and compare with difflib, whose junk heuristic distorts texts of
    200 characters and more: one character changed in 400 can score 0.90 (quirk difflib).

    Raises ValueError for a threshold outside (0, 1].
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold is {threshold}; it must be above 0 and at most 1")
    theirs = "difflib" in quirks(compat, ["difflib"])
    names: dict[tuple[Hashable, str], Hashable] = {}
    for key, texts in _texts_by_group(anchors, group).items():
        ordered = texts if theirs else sorted(texts)
        clusters = _first_fit(ordered, threshold, DifflibMatcher if theirs else SubsequenceMatcher)
        names.update({((key, text)): (key, clusters[text]) for text in texts})
    return [None if a is None else names[g, a] for a, g in zip(anchors, group, strict=True)]


def _texts_by_group(
    anchors: Sequence[str | None], group: Sequence[Hashable]
) -> dict[Hashable, dict[str, None]]:
    """The distinct texts of each group, in order of first appearance."""
    texts: dict[Hashable, dict[str, None]] = {}
    for anchor, key in zip(anchors, group, strict=True):
        if anchor is not None:
            texts.setdefault(key, {})[anchor] = None
    return texts


def _first_fit(texts: Iterable[str], threshold: float, matcher: type[Matcher]) -> dict[str, int]:
    """Cluster number of each text."""
    firsts: list[Matcher] = []
    clusters: dict[str, int] = {}
    for text in texts:
        this = matcher(text)
        found = next((i for i, first in enumerate(firsts) if first.alike(this, threshold)), len(firsts))
        if found == len(firsts):
            firsts.append(this)
        clusters[text] = found
    return clusters


class Matcher(Protocol):
    """A text that others are compared with."""

    text: str

    def __init__(self, text: str) -> None: ...

    def alike(self, other: Any, threshold: float) -> bool:
        """Whether the texts are alike to `threshold`; `other` is of the same class."""
        ...


class SubsequenceMatcher:
    """Compares by longest common subsequences; what is computed of a text is kept for the next comparison."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def counts(self) -> Counter[str]:
        """How often each character occurs."""
        return Counter(self.text)

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each character occurs, one bit per place."""
        return _places(self.text)

    def alike(self, other: SubsequenceMatcher, threshold: float) -> bool:
        """Whether 2 * LCS >= threshold * (sum of the lengths); two empty texts are alike."""
        a, b = self.text, other.text
        needed = threshold * (len(a) + len(b)) / 2
        if min(len(a), len(b)) < needed or (self.counts & other.counts).total() < needed:
            return False
        start = _common_prefix(a, b)
        end = _common_prefix(a[start:][::-1], b[start:][::-1])
        if start + end >= needed:
            return True
        if start + end < len(a) / 2:
            return _common(self.places, len(a), b, needed) >= needed
        middle_a, middle_b = a[start : len(a) - end], b[start : len(b) - end]
        needed -= start + end
        return _common(_places(middle_a), len(middle_a), middle_b, needed) >= needed


class DifflibMatcher:
    """Compares with difflib, its junk heuristic included."""

    def __init__(self, text: str) -> None:
        self.text = text

    def alike(self, other: DifflibMatcher, threshold: float) -> bool:
        """Whether difflib's ratio of the other text to this one reaches `threshold`."""
        return SequenceMatcher(None, other.text, self.text).ratio() >= threshold


def _common_prefix(a: str, b: str) -> int:
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low


def _places(text: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for i, character in enumerate(text):
        places[character] = places.get(character, 0) | 1 << i
    return places


def _common(places: dict[str, int], length: int, b: str, needed: float) -> int:
    """Length of the longest common subsequence of b and a text of `length` whose characters are at `places`.

    May stop early with less where `needed` is out of reach. One bit per character of the text, one addition per
    character of b. Source: Hyyro 2004, "Bit-parallel LCS-length computation revisited".
    """
    everything = (1 << length) - 1
    row = everything
    for left, character in zip(range(len(b) - 1, -1, -1), b, strict=True):
        match = row & places.get(character, 0)
        row = (row + match | row - match) & everything
        if left % 32 == 0 and (everything ^ row).bit_count() + left < needed:
            break
    return (everything ^ row).bit_count()
