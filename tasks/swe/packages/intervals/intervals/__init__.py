"""Sets of half-open intervals."""

from intervals.core import IntervalSet
from intervals.text import format_set, parse_set

__all__ = ["IntervalSet", "format_set", "parse_set"]
