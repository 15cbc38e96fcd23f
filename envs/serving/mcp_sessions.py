"""A world for any MCP client at one URL: each MCP session plays an episode of its own, of one task.

A session belongs to the handshake of the protocol up to 2025-11-25; clients that speak the sessionless 2026-07-28 are
told to use that handshake, which the official client does by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from palestra.envs.errors import SessionError
from palestra.envs.serving.episode import EXPECTED, Episode, Episodes
from palestra.envs.serving.mcp_server import MAX_BODY_BYTES, as_action, as_mcp_tool, as_result

_SESSION = "mcp-session-id"
OVER = "The episode is over. Nothing more can be done."


class EpisodePlayer:
    """An episode as one MCP client sees it: it begins once, and when it is over it stays so."""

    def __init__(self, episode: Episode) -> None:
        """Use `begin` before anything else."""
        self.observation = ""
        self._episode = episode
        self._over = False

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Tool definitions in the OpenAI function-calling form."""
        return self._episode.tools

    async def begin(self, seed: int | None, task_id: str | None) -> None:
        """Reset the world. Raises EnvError, TaskError."""
        self.observation = (await self._episode.reset(seed, task_id)).observation

    async def play(self, action: str, _tool_call_id: str | None = None) -> tuple[str, bool]:
        """(observation, whether the action was valid)."""
        if self._over:
            return OVER, False
        try:
            turn = await self._episode.act(action)
        except EXPECTED as error:
            self._over = True
            return f"error: {error}", False
        self._over = turn.over
        return turn.observation, bool(turn.info["valid_action"])


class McpSessions:
    """An ASGI app for /mcp. Make one with `open`; run it inside `running`."""

    def __init__(
        self, episodes: Episodes, seed: int | None, task_id: str | None, name: str, opening: str
    ) -> None:
        self._episodes, self._seed, self._task_id = episodes, seed, task_id
        self._players: dict[str, EpisodePlayer] = {}
        server: Server[Any] = Server(
            name, instructions=opening, on_list_tools=self._list_tools, on_call_tool=self._call_tool
        )
        self._manager = StreamableHTTPSessionManager(
            server, json_response=True, max_request_body_size=MAX_BODY_BYTES, session_idle_timeout=1800.0
        )

    @classmethod
    async def open(cls, episodes: Episodes, name: str, seed: int | None, task_id: str | None) -> McpSessions:
        """Begin the task once, to know what it says first. Raises EnvError, TaskError."""
        probe = episodes.open()
        try:
            opening = (await probe.reset(seed, task_id)).observation
        finally:
            episodes.close(probe.id)
        return cls(episodes, seed, task_id, name, opening)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sessions are served while the block runs."""
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers = Headers(scope=scope)
        version = headers.get("mcp-protocol-version")
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await _wrong_version(version)(scope, receive, send)
            return
        await self._manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE" and _SESSION in headers:
            self._forget(headers[_SESSION])

    async def _list_tools(self, context: Any, _params: Any) -> mcp_types.ListToolsResult:
        player = await self._player(context)
        return mcp_types.ListToolsResult(tools=[as_mcp_tool(tool) for tool in player.tools])

    async def _call_tool(
        self, context: Any, params: mcp_types.CallToolRequestParams
    ) -> mcp_types.CallToolResult:
        player = await self._player(context)
        return as_result(*await player.play(as_action(params.name, params.arguments)))

    async def _player(self, context: Any) -> EpisodePlayer:
        """The player of this session; its episode begins with the first request that needs it."""
        session = context.request.headers[_SESSION]
        if session not in self._players:
            player = self._players[session] = EpisodePlayer(self._episodes.open(session))
            await player.begin(self._seed, self._task_id)
        elif session not in self._episodes:
            raise SessionError(f"the episode of session {session!r} was idle too long")
        return self._players[session]

    def _forget(self, session: str) -> None:
        self._players.pop(session, None)
        self._episodes.close(session)


def _wrong_version(version: str) -> JSONResponse:
    error = {
        "code": UNSUPPORTED_PROTOCOL_VERSION,
        "message": f"protocol {version[:32]!r} has no sessions: begin with the initialize handshake",
        "data": {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version[:32]},
    }
    return JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 400)
