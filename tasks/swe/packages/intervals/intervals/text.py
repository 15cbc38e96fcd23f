"""Sets of whole numbers as people write them: 1-3,7."""

from __future__ import annotations

from intervals.core import IntervalSet


def parse_set(text: str) -> IntervalSet:
    """Read "1-3,7" as the whole numbers 1, 2, 3 and 7. Raises ValueError."""
    spans = []
    for part in text.split(","):
        part = part.strip()
        if not part:
            continue
        first, dash, last = part.partition("-")
        low = int(first)
        high = int(last) if dash else low
        if high < low:
            raise ValueError(f"{part!r} runs backwards")
        spans.append((low, high + 1))
    return IntervalSet(spans)


def format_set(numbers: IntervalSet) -> str:
    """The inverse of `parse_set`."""
    parts = []
    for start, end in numbers:
        last = int(end) - 1
        parts.append(str(int(start)) if last == start else f"{int(start)}-{last}")
    return ",".join(parts)
