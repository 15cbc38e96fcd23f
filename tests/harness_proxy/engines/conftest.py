"""Embedded engines over tiny random weights, closed after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import torch

from palestra.harness_proxy.engines.embedded.engine import TorchEngine
from palestra.harness_proxy.engines.embedded.testing import TINY, random_weights

torch.set_num_threads(1)

MakeEngine = Callable[..., TorchEngine]


@pytest.fixture
async def make_engine() -> AsyncIterator[MakeEngine]:
    """`make_engine(**options)`; every engine made is closed at the end."""
    engines: list[TorchEngine] = []

    def make(**options: Any) -> TorchEngine:
        engines.append(TorchEngine(TINY, random_weights(), **options))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.aclose()


@pytest.fixture
async def engine(make_engine: MakeEngine) -> TorchEngine:
    return make_engine()
