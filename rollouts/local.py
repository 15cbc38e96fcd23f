"""Everything one machine needs to run rollouts: an engine, the proxy before it, a runner and a store.

async with local(engine, Rendering.load(model_dir), store=store) as stack:
    await stack.runner.run(jobs, spec)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from palestra.harness_proxy.engines.base import Engine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.rollouts.harnesses import Harness, ToolLoop
from palestra.rollouts.runner import Runner
from palestra.trajectories.store import Store

if TYPE_CHECKING:
    from palestra.harness_proxy.engines.embedded.process import ProcessEngine

MAX_BATCH = 128
"""Sequences that the embedded engine decodes at once."""


@dataclass(frozen=True, slots=True)
class Local:
    """What runs in this process."""

    engine: Engine
    proxy: Proxy
    runner: Runner


@asynccontextmanager
async def local(
    engine: Engine,
    rendering: Rendering | None,
    *,
    harness: Harness | None = None,
    store: Store | None = None,
    concurrency: int = 256,
) -> AsyncIterator[Local]:
    """Start a proxy before `engine` and a runner for `harness` (default ToolLoop); close all at the end.

    A HostedEngine, of which only text is known, has no `rendering`.
    """
    async with AsyncExitStack() as stack:
        stack.push_async_callback(engine.aclose)
        proxy = Proxy(engine, rendering)
        await proxy.start()
        stack.push_async_callback(proxy.aclose)
        runner = Runner(proxy, harness or ToolLoop(), store=store, concurrency=concurrency)
        stack.push_async_callback(runner.aclose)
        yield Local(engine, proxy, runner)


def embedded_engine(model_dir: str | Path, *, version: int = 0, deterministic: bool = False) -> Engine:
    """The torch engine in this process, for a local Qwen3 directory. Raises ImportError without torch."""
    with _torch_needed():
        from palestra.harness_proxy.engines.embedded.engine import TorchEngine
    return TorchEngine.load(model_dir, version=version, max_batch=MAX_BATCH, deterministic=deterministic)


async def child_engine(
    model_dir: str | Path, *, version: int = 0, deterministic: bool = False
) -> ProcessEngine:
    """The same in a process of its own: sampling then leaves this one to the proxy and the environments."""
    with _torch_needed():
        from palestra.harness_proxy.engines.embedded.process import ProcessEngine
    return await ProcessEngine.load(
        model_dir, version=version, max_batch=MAX_BATCH, deterministic=deterministic
    )


@contextmanager
def _torch_needed() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error.name} is not installed: pip install 'palestra[train]', or use an endpoint"
        ) from error
