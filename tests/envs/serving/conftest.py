"""A service of one task of sql-tiny."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from serving import TASK, serving


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Held open by a task of its own: what opens a cancel scope has to close it, and fixtures change tasks."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def hold() -> None:
        async with serving(task_id=TASK) as url:
            ready.set_result(url)
            await done.wait()

    task = asyncio.create_task(hold())
    while not ready.done() and not task.done():
        await asyncio.sleep(0.005)
    if task.done():
        await task
    yield ready.result()
    done.set()
    await task
