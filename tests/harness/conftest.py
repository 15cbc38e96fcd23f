"""A tiny rendering that thinks, and a stand on which real harnesses play."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness_stand import Stand
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.testing import make_tiny_tokenizer


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def rendering(model_dir: Path) -> Rendering:
    return Rendering.load(model_dir, enable_thinking=True, keep_thinking=True)


@pytest.fixture
async def stand(rendering: Rendering) -> AsyncIterator[Stand]:
    made = Stand(rendering)
    yield made
    await made.aclose()
