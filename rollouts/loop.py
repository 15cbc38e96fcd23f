"""The event loop of a run: uvloop, and a garbage collector that looks less often.

    run(runner.run(jobs, spec))

A turn makes a few hundred objects that live as long as their rollout. With Python's default (a collection for every
700 new objects) looking through them again and again takes a fifth of the CPU time of a turn; cycles are rare
here, so collecting them later costs little memory. benchmarks/overhead.py measures both. Where the loop is somebody
else's, the runner works on it all the same.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

GC_THRESHOLD = 50_000
"""New objects between two collections of the youngest generation."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run(main)` on the loop described above."""
    with runner() as loop:
        return loop.run(main)


def runner() -> asyncio.Runner:
    """An asyncio.Runner with that loop, for several coroutines in turn. Changes the collector of the process."""
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
