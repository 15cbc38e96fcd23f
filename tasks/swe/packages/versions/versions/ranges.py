"""Ranges: >=1.2 <2, ^1.4, ~2.3.1, 1.x, and several of them with || between."""

from __future__ import annotations

import re
from collections.abc import Iterable

from versions.version import Version

_PART = re.compile(
    r"(>=|<=|>|<|=|\^|~)?\s*v?(\d+|[xX*])(?:\.(\d+|[xX*]))?(?:\.(\d+|[xX*]))?(?:-([0-9A-Za-z.-]+))?"
)
Bound = tuple[str, Version]


class Range:
    """What versions are wanted. A pre-release is only wanted where a bound names one of the same release."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._choices = [_bounds(choice) for choice in text.split("||")]

    def __contains__(self, version: Version) -> bool:
        return any(_fits(version, bounds) for bounds in self._choices)

    def __repr__(self) -> str:
        return f"Range({self.text!r})"


def best(versions: Iterable[str], wanted: str, lowest: bool = False) -> str | None:
    """The highest (or lowest) version in a range, as it was written, or None."""
    range_ = Range(wanted)
    fitting = [v for v in versions if Version.parse(v) in range_]
    if not fitting:
        return None
    return min(fitting, key=Version.parse) if lowest else max(fitting, key=Version.parse)


def _fits(version: Version, bounds: list[Bound]) -> bool:
    for sign, bound in bounds:
        if sign == ">=" and version < bound:
            return False
        if sign == ">" and version <= bound:
            return False
        if sign == "<" and version >= bound:
            return False
        if sign == "<=" and version > bound:
            return False
    if version.pre:
        return any(b.pre and b.release == version.release for _, b in bounds)
    return True


def _bounds(choice: str) -> list[Bound]:
    found: list[Bound] = []
    rest = choice.strip()
    while rest:
        match = _PART.match(rest)
        if match is None:
            raise ValueError(f"{choice.strip()!r} is no range")
        found += _expanded(*match.groups())
        rest = rest[match.end() :].strip()
    return found


def _expanded(sign: str | None, *parts: str | None) -> list[Bound]:
    """The bounds that one comparison stands for."""
    numbers = [None if p is None or p in "xX*" else int(p) for p in parts[:3]]
    known = numbers.index(None) if None in numbers else 3
    major, minor, patch = (n if n is not None and i < known else 0 for i, n in enumerate(numbers))
    low = Version(major, minor, patch, tuple(parts[3].split(".")) if parts[3] else ())
    if sign in (">", "<=") and known < 3:
        after = _next(low, known)
        return [(">=" if sign == ">" else "<", after)] if after else []
    if sign in (">=", ">", "<", "<="):
        return [(sign, low)]
    if sign == "^":
        change = next((i for i, n in enumerate(low.release) if n > 0), 2)
        return _between(low, min(change + 1, known))
    if sign == "~":
        return _between(low, min(2, known))
    return _between(low, known) if known < 3 else [(">=", low), ("<=", low)]


def _between(low: Version, parts: int) -> list[Bound]:
    """From `low` to the next version that differs in one of its first `parts` numbers."""
    high = _next(low, parts)
    return [(">=", low), ("<", high)] if high else [(">=", low)]


def _next(version: Version, parts: int) -> Version | None:
    if parts == 0:
        return None
    release = [*version.release[: parts - 1], version.release[parts - 1] + 1]
    return Version(*release)
