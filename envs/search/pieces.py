"""Which piece of a passage is shown, and under which heading."""

from __future__ import annotations

from collections.abc import Iterator

from palestra.envs.search.quoting import label
from palestra.tasks.search.corpus import Passage

FIND_CHARS = 80
"""Shown before and after a match of find_in_page."""
FIND_MATCHES = 5


def heading(name: str, passage: Passage) -> str:
    """The label of a passage in square brackets, and its title where that is another."""
    title = label(passage.title)
    return f"[{name}]" if title in ("", name) else f"[{name}] {title}"


def snippet_start(text: str, query: str, length: int) -> int:
    """Where a piece of `length` begins that has a word of the query in it; 0 where the text fits."""
    if len(text) <= length:
        return 0
    lowered = text.lower()
    places = (lowered.find(word) for word in sorted(set(query.lower().split()), key=len, reverse=True)[:8])
    first = next((place for place in places if place >= 0), 0)
    return max(min(first - length // 4, len(text) - length), 0)


def places(text: str, wanted: str) -> Iterator[int]:
    """The first occurrences, apart from each other."""
    place = -1
    for _ in range(FIND_MATCHES):
        place = text.find(wanted, place + 1 if place < 0 else place + len(wanted) + FIND_CHARS)
        if place < 0:
            return
        yield place


def start_of(text: str, name: str) -> int:
    """Where a tag opens in `text`; its length where it does not."""
    place = text.find(f"<{name}>")
    return place if place >= 0 else len(text)
