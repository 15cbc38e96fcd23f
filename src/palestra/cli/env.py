"""`palestra env`: worlds as services."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.cli.errors import UsageError
from palestra.cli.options import TaskSetName

if TYPE_CHECKING:
    from palestra.tasks.task import TaskSet

app = typer.Typer(help="Serve worlds to others.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _env() -> None:
    """Serve worlds to others."""


@app.command()
def serve(
    tasks: TaskSetName,
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="ID", help="what an MCP client plays; else drawn by --seed"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="draws the task of MCP clients")] = 0,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="one MCP client over stdin and stdout, instead of HTTP")
    ] = False,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="where to listen")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, metavar="N", help="0 takes any")] = 8000,
    max_sessions: Annotated[
        int, typer.Option("--max-sessions", min=1, metavar="N", help="episodes at once")
    ] = 64,
) -> None:
    """Serve the world of a task set over MCP and OpenEnv.

    MCP at /mcp (streamable HTTP) or over stdio; OpenEnv at /ws and over HTTP. Every connection plays an episode of its
    own. OpenEnv clients reset to any task by id or seed.

    \b
    Examples:
      palestra env serve sql-tiny
      palestra env serve sql-tiny --task sql-tiny/test/0000/highest --stdio
      claude mcp add sql -- palestra env serve sql-gym --seed 3 --stdio
    """
    from palestra.tasks.registry import load_tasks

    loaded = load_tasks(tasks)
    env_id = _env_of(loaded, tasks, task)
    if stdio:
        from palestra.envs.serving.service import serve_mcp_stdio

        asyncio.run(serve_mcp_stdio(env_id, loaded, seed=seed, task_id=task))
        return
    asyncio.run(_serve(env_id, loaded, seed, task, host, port, max_sessions))


def _env_of(loaded: TaskSet, name: str, task: str | None) -> str:
    """The environment of the tasks. Raises UsageError where there are several, none, or no such task."""
    if task is not None and loaded.get(task) is None:
        raise UsageError(f"task set {name!r} has no task {task!r}: palestra tasks show {name} lists them")
    found = sorted({t.env for t in loaded})
    if len(found) != 1:
        raise UsageError(
            f"the tasks of {name!r} are played in {', '.join(found) or 'no environment'}: serve one"
        )
    return found[0]


async def _serve(
    env_id: str, loaded: TaskSet, seed: int, task: str | None, host: str, port: int, max_sessions: int
) -> None:
    from palestra.envs.serving.service import service, web_server

    async with service(env_id, loaded, seed=seed, task_id=task, max_sessions=max_sessions) as app:
        server = web_server(app, host, port)
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            bound = server.servers[0].sockets[0].getsockname()[1]
            print(f"{env_id}: OpenEnv at http://{host}:{bound}, MCP at http://{host}:{bound}/mcp", flush=True)
        await serving
