"""Everything one machine needs to run rollouts: an engine, the proxy before it, a runner and a store.

async with local(engine, Rendering.load(model_dir), store=store) as stack:
    await stack.runner.run(jobs, spec)
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from palestra.harness_proxy.engines.base import Engine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.rollouts.harnesses import Harness, ToolLoop
from palestra.rollouts.runner import Runner
from palestra.trajectories.store import Store


@dataclass(frozen=True, slots=True)
class Local:
    """What runs in this process."""

    engine: Engine
    rendering: Rendering
    proxy: Proxy
    runner: Runner


@asynccontextmanager
async def local(
    engine: Engine,
    rendering: Rendering,
    *,
    harness: Harness | None = None,
    store: Store | None = None,
    concurrency: int = 256,
) -> AsyncIterator[Local]:
    """Start a proxy before `engine` and a runner for `harness` (default ToolLoop); close all at the end."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.aclose)
        proxy = Proxy(engine, rendering)
        await proxy.start()
        stack.push_async_callback(proxy.aclose)
        runner = Runner(proxy, harness or ToolLoop(), store=store, concurrency=concurrency)
        stack.push_async_callback(runner.aclose)
        yield Local(engine, rendering, proxy, runner)


def embedded_engine(model_dir: str | Path, *, version: int = 0, deterministic: bool = False) -> Engine:
    """The torch engine for a local Qwen3 directory. Raises ImportError where torch is missing."""
    try:
        from palestra.harness_proxy.engines.embedded.engine import TorchEngine
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error.name} is not installed: pip install 'palestra[train]', or use an endpoint"
        ) from error
    return TorchEngine.load(model_dir, version=version, max_batch=128, deterministic=deterministic)
