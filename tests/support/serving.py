"""`serving(...)`: a service on a socket of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from palestra.envs.serving.service import service, web_server
from palestra.tasks.registry import load_tasks

TASK = "sql-tiny/test/0000/highest"
GOLD = "SELECT badge FROM gate ORDER BY weight DESC LIMIT 1"


@asynccontextmanager
async def serving(
    env_id: str = "palestra/Sql-v0", tasks: Any = "sql-tiny", **options: Any
) -> AsyncIterator[str]:
    loaded = load_tasks(tasks) if isinstance(tasks, str) else tasks
    async with service(env_id, loaded, **options) as app:
        server = web_server(app, "127.0.0.1", 0)
        task = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = server.force_exit = True
            await task
