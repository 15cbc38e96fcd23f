"""Anchors that are alike: clusters of texts, to be named as one state.

Two texts are alike where 2 * LCS / (length + length) reaches a threshold, LCS the length of their longest common
subsequence: what an edit that inserts and deletes leaves. Distinct texts are compared once, with bounds first and
then a bit-parallel LCS on what is left between their common ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher

from palestra.training.advantages.compat import Compat, quirks

Alike = Callable[[str, str, float], bool]


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
        clusters = _first_fit(ordered, threshold, _difflib_alike if theirs else alike)
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


def _first_fit(texts: Sequence[str] | dict[str, None], threshold: float, same: Alike) -> dict[str, int]:
    """Cluster number of each text."""
    firsts: list[str] = []
    clusters: dict[str, int] = {}
    for text in texts:
        found = next((i for i, first in enumerate(firsts) if same(text, first, threshold)), len(firsts))
        if found == len(firsts):
            firsts.append(text)
        clusters[text] = found
    return clusters


def alike(a: str, b: str, threshold: float) -> bool:
    """Whether 2 * LCS(a, b) >= threshold * (len(a) + len(b)); two empty texts are."""
    needed = threshold * (len(a) + len(b)) / 2
    if a == b:
        return True
    if min(len(a), len(b)) < needed or (Counter(a) & Counter(b)).total() < needed:
        return False
    ends = _common_prefix(a, b)
    a, b = a[ends:], b[ends:]
    tail = _common_prefix(a[::-1], b[::-1])
    a, b = a[: len(a) - tail], b[: len(b) - tail]
    return ends + tail + _common(a, b, needed - ends - tail) >= needed


def _common_prefix(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _common(a: str, b: str, needed: float) -> int:
    """Length of the longest common subsequence; may stop early with less where `needed` is out of reach.

    One bit per character of a, one addition per character of b. Source: Hyyro 2004, "Bit-parallel LCS-length
    computation revisited".
    """
    places: dict[str, int] = {}
    for i, character in enumerate(a):
        places[character] = places.get(character, 0) | 1 << i
    everything = (1 << len(a)) - 1
    row = everything
    for left, character in zip(range(len(b) - 1, -1, -1), b, strict=True):
        match = row & places.get(character, 0)
        row = (row + match | row - match) & everything
        if left % 32 == 0 and (everything ^ row).bit_count() + left < needed:
            break
    return (everything ^ row).bit_count()


def _difflib_alike(a: str, b: str, threshold: float) -> bool:
    return SequenceMatcher(None, a, b).ratio() >= threshold
