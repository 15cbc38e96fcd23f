"""The set itself: sorted, disjoint, half-open intervals."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator


class IntervalSet:
    """An immutable set of numbers, kept as intervals [start, end)."""

    def __init__(self, intervals: Iterable[tuple[float, float]] = ()) -> None:
        self._spans = tuple(_joined(sorted(intervals)))

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntervalSet) and self._spans == other._spans

    def __hash__(self) -> int:
        return hash(self._spans)

    def __contains__(self, x: float) -> bool:
        place = bisect_right(self._spans, (x, float("inf"))) - 1
        return place >= 0 and x < self._spans[place][1]

    def __or__(self, other: IntervalSet) -> IntervalSet:
        return IntervalSet([*self._spans, *other._spans])

    def __and__(self, other: IntervalSet) -> IntervalSet:
        found = []
        i = j = 0
        while i < len(self._spans) and j < len(other._spans):
            (a, b), (c, d) = self._spans[i], other._spans[j]
            if max(a, c) < min(b, d):
                found.append((max(a, c), min(b, d)))
            if b < d:
                i += 1
            else:
                j += 1
        return IntervalSet(found)

    def __sub__(self, other: IntervalSet) -> IntervalSet:
        rest = []
        for start, end in self._spans:
            for a, b in other._spans:
                if b <= start or a >= end:
                    continue
                if start < a:
                    rest.append((start, a))
                start = max(start, b)
            rest.append((start, end))
        return IntervalSet(rest)

    @property
    def measure(self) -> float:
        """The total length."""
        return sum(end - start for start, end in self._spans)

    def gaps(self, start: float, end: float) -> IntervalSet:
        """What of [start, end) is not in the set."""
        return IntervalSet([(start, end)]) - self

    def shifted(self, by: float) -> IntervalSet:
        """Every number moved by `by`."""
        return IntervalSet([(start + by, end + by) for start, end in self._spans])

    def first_fit(self, length: float, after: float = 0) -> float | None:
        """The least x >= after such that [x, x + length) is in the set, or None."""
        for start, end in self._spans:
            x = max(start, after)
            if end - x >= length:
                return x
        return None


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Sorted spans with overlapping and touching ones made one, and empty ones left out."""
    joined: list[tuple[float, float]] = []
    for start, end in spans:
        if end <= start:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
