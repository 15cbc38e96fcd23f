"""A cache that forgets what was not used for longest, and what is too old."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass
class Stats:
    """What a cache was asked."""

    hits: int = 0
    misses: int = 0
    evicted: int = 0

    @property
    def hit_rate(self) -> float:
        """Hits among all look-ups; 0 before the first."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0


class Cache:
    """At most `size` weighed entries, each for at most `max_age` seconds (None: for ever)."""

    def __init__(
        self,
        size: int,
        max_age: float | None = None,
        weigh: Callable[[Any], int] = lambda value: 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size, self.max_age = size, max_age
        self.stats = Stats()
        self._weigh, self._clock = weigh, clock
        self._entries: OrderedDict[Hashable, tuple[Any, float]] = OrderedDict()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Hashable]:
        """The keys, the one that goes next first."""
        return (key for key, (_, stored) in self._entries.items() if not self._is_old(stored))

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries and not self._is_old(self._entries[key][1])

    @property
    def weight(self) -> int:
        """The weights of all entries together."""
        return sum(self._weigh(value) for value, _ in self._entries.values())

    def get(self, key: Hashable, default: Any = None) -> Any:
        """The value of a key, which is now the last to go; or the default."""
        if key not in self:
            self._entries.pop(key, None)
            self.stats.misses += 1
            return default
        self.stats.hits += 1
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: Hashable, value: Any) -> list[Hashable]:
        """Store a value; returns the keys that had to go for it. One that is too heavy is not stored."""
        if self._weigh(value) > self.size:
            self._entries.pop(key, None)
            return []
        self._entries[key] = (value, self._clock())
        self._entries.move_to_end(key)
        return self._make_room()

    def get_or_make(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The value of a key, made and stored where it is absent; None is a value too."""
        absent = object()
        value = self.get(key, absent)
        if value is absent:
            value = make()
            self.put(key, value)
        return value

    def _make_room(self) -> list[Hashable]:
        gone = [key for key, (_, stored) in self._entries.items() if self._is_old(stored)]
        for key in gone:
            del self._entries[key]
        while self.weight > self.size:
            key, _ = self._entries.popitem(last=False)
            self.stats.evicted += 1
            gone.append(key)
        return gone

    def _is_old(self, stored: float) -> bool:
        return self.max_age is not None and self._clock() - stored >= self.max_age
