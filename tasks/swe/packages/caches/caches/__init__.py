"""Bounded caches."""

from caches.lru import Cache, Stats
from caches.memo import memo

__all__ = ["Cache", "Stats", "memo"]
