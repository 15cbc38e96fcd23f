"""A least-recently-used cache bounded by the bytes of its values, safe between threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class ByteCache(Generic[Value]):
    """Keeps values until their sizes add up to more than `max_bytes`; the newest value is always kept."""

    def __init__(self, max_bytes: int, size: Callable[[Value], int]) -> None:
        self._max_bytes, self._size = max_bytes, size
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._held_bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The value of `key`; made when it is absent. Two threads may make the same value; one is kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        made = make()
        with self._lock:
            if key not in self._values:
                self._values[key] = made
                self._held_bytes += self._size(made)
                self._evict()
        return made

    def _evict(self) -> None:
        while self._held_bytes > self._max_bytes and len(self._values) > 1:
            _, oldest = self._values.popitem(last=False)
            self._held_bytes -= self._size(oldest)
