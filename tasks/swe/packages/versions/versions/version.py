"""One version: 1.2.3-rc.1+build."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

_PATTERN = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+([0-9A-Za-z.-]+))?")


@total_ordering
@dataclass(frozen=True, eq=False)
class Version:
    """Ordered as semver.org says: a pre-release comes before its release, and builds do not count."""

    major: int
    minor: int = 0
    patch: int = 0
    pre: tuple[str, ...] = ()
    build: str = ""

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read a version. Raises ValueError."""
        match = _PATTERN.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is no version")
        major, minor, patch, pre, build = match.groups()
        parts = tuple(pre.split(".")) if pre else ()
        if "" in parts or any(p.isdigit() and p != "0" and p.startswith("0") for p in parts):
            raise ValueError(f"{text!r} has a bad pre-release")
        return cls(int(major), int(minor), int(patch), parts, build or "")

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.pre:
            text += "-" + ".".join(self.pre)
        return text + (f"+{self.build}" if self.build else "")

    @property
    def release(self) -> tuple[int, int, int]:
        """The three numbers."""
        return self.major, self.minor, self.patch

    def _key(self) -> tuple[object, ...]:
        # A number comes before a word, and a longer list after a shorter one that it begins with.
        pre = tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in self.pre)
        return (*self.release, not self.pre, pre)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key() == other._key()

    def __lt__(self, other: Version) -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def raised(self, part: str) -> Version:
        """The next major, minor or patch version; a pre-release of it becomes the release itself."""
        if part == "major":
            if self.pre and self.minor == self.patch == 0:
                return Version(self.major)
            return Version(self.major + 1)
        if part == "minor":
            if self.pre and self.patch == 0:
                return Version(self.major, self.minor)
            return Version(self.major, self.minor + 1)
        if part == "patch":
            return Version(self.major, self.minor, self.patch if self.pre else self.patch + 1)
        raise ValueError(f"part is major, minor or patch, not {part!r}")
