"""Several configurations into one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge(*layers: Mapping[str, Any], append: bool = False) -> dict[str, Any]:
    """Later layers win; mappings are merged key by key, and lists are joined if `append`."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            old = merged.get(key)
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                merged[key] = merge(old, value, append=append)
            elif append and isinstance(old, list) and isinstance(value, list):
                merged[key] = old + value
            else:
                merged[key] = value
    return merged


def flatten(tree: Mapping[str, Any], separator: str = ".") -> dict[str, Any]:
    """{"a": {"b": 1}} becomes {"a.b": 1}; empty mappings disappear."""
    flat = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            for inner, leaf in flatten(value, separator).items():
                flat[key + separator + inner] = leaf
        else:
            flat[key] = value
    return flat
