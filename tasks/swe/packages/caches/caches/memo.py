"""Functions that remember what they returned."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from caches.lru import Cache


def memo(size: int = 128, typed: bool = False, errors: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Remember the last `size` results by arguments; `typed` tells 1 from 1.0, `errors` remembers exceptions too."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        cache = Cache(size)

        @functools.wraps(function)
        def remembered(*args: Any, **kwargs: Any) -> Any:
            key = _key(args, kwargs, typed)
            failed, value = cache.get_or_make(key, lambda: _outcome(function, args, kwargs, errors))
            if failed:
                raise value
            return value

        remembered.cache = cache  # type: ignore[attr-defined]
        return remembered

    return decorate


def _outcome(function: Callable[..., Any], args: Any, kwargs: Any, errors: bool) -> tuple[bool, Any]:
    try:
        return False, function(*args, **kwargs)
    except Exception as error:
        if not errors:
            raise
        return True, error


def _key(args: tuple[Any, ...], kwargs: dict[str, Any], typed: bool) -> tuple[Any, ...]:
    named = tuple(sorted(kwargs.items()))
    key = (args, named)
    if typed:
        key += (tuple(map(type, args)), tuple(type(v) for _, v in named))
    return key
