"""Whether the tests can have a browser."""

from __future__ import annotations

import functools
from importlib.util import find_spec


@functools.cache
def browser() -> bool:
    """Whether Chromium and the packages of the extra `web` are there."""
    from palestra.envs.web.host import executable

    packages = ("playwright", "starlette", "multipart", "miniwob", "PIL")
    return executable() is not None and all(find_spec(name) for name in packages)
