"""The service behind `palestra env serve`: OpenEnv at /, MCP at /mcp, one socket."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import gymnasium
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from palestra.envs import register_envs
from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvError
from palestra.envs.serving.episode import Episode, Episodes
from palestra.envs.serving.mcp_server import MAX_BODY_BYTES, mcp_server, serve_stdio
from palestra.envs.serving.mcp_sessions import EpisodePlayer, McpSessions
from palestra.envs.serving.openenv import OpenEnvService
from palestra.tasks.task import TaskSet


def maker(env_id: str, tasks: TaskSet) -> Callable[[], TaskEnv]:
    """A function that makes the environment `env_id`. Raises EnvError where there is none, or no TaskEnv."""
    register_envs()

    def make() -> TaskEnv:
        try:
            env = gymnasium.make(env_id).unwrapped
        except gymnasium.error.Error as error:
            raise EnvError(f"there is no environment {env_id!r}: {error}") from error
        if not isinstance(env, TaskEnv):
            raise EnvError(f"{env_id} is a {type(env).__name__}; only a TaskEnv can be served")
        env.use(tasks)
        return env

    return make


class Service:
    """An ASGI app: /mcp goes to MCP sessions, the rest to OpenEnv."""

    def __init__(self, mcp: ASGIApp, openenv: Starlette) -> None:
        self._mcp, self._openenv = mcp, openenv

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        app = self._mcp if scope["type"] == "http" and scope["path"].rstrip("/") == "/mcp" else self._openenv
        await app(scope, receive, send)


@asynccontextmanager
async def service(
    env_id: str, tasks: TaskSet, *, seed: int | None = 0, task_id: str | None = None, max_sessions: int = 64
) -> AsyncIterator[Service]:
    """Serve `env_id` while the block runs. `task_id` or else `seed` choose what MCP sessions play.

    Raises EnvError, TaskError.
    """
    episodes = Episodes(maker(env_id, tasks), tasks, max_sessions=max_sessions)
    async with AsyncExitStack() as stack:
        stack.callback(episodes.close_all)
        sessions = await McpSessions.open(episodes, env_id, seed, task_id)
        await stack.enter_async_context(sessions.running())
        openenv = OpenEnvService(episodes, env_id, f"{len(tasks)} tasks of {tasks.name}")
        yield Service(sessions, openenv.app())


def web_server(app: Service, host: str, port: int) -> uvicorn.Server:
    """uvicorn with WebSockets whose messages are bounded."""
    return uvicorn.Server(
        uvicorn.Config(
            app, host=host, port=port, ws="websockets-sansio", ws_max_size=MAX_BODY_BYTES, lifespan="off",
            access_log=False, log_level="warning", server_header=False,
        )
    )  # fmt: skip


async def serve_mcp_stdio(
    env_id: str, tasks: TaskSet, *, seed: int | None = 0, task_id: str | None = None
) -> None:
    """Serve one episode to one MCP client over stdin and stdout. Raises EnvError, TaskError."""
    episode = Episode(maker(env_id, tasks), tasks)
    try:
        player = EpisodePlayer(episode)
        await player.begin(seed, task_id)
        await serve_stdio(mcp_server(env_id, player))
    finally:
        episode.close()
