"""The tools of one world as an MCP server (official `mcp` SDK): tools/list and tools/call, nothing else.

    server = mcp_server("palestra", player)
    await serve_stdio(server)                 one episode over stdin and stdout
    McpGate().serving(server)                 one episode behind one secret URL, streamable HTTP

What a tool call answers is the observation, word for word; `isError` is set where the action was not valid. The first
observation is the server's `instructions`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import mcp_types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

MAX_BODY_BYTES = 1_000_000
"""Of one request; a longer one is refused with status 413."""
_TOOL_USE_ID = "claudecode/toolUseId"
"""Under `_meta` of a call: the id of the model's tool call, where the client tells it."""


class Player(Protocol):
    """Whoever takes the steps for an MCP client."""

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Tool definitions in the OpenAI function-calling form."""
        ...

    @property
    def observation(self) -> str:
        """What the agent reads first."""
        ...

    async def play(self, action: str, tool_call_id: str | None) -> tuple[str, bool]:
        """(observation, whether the action was valid). Raises nothing that an agent can cause."""
        ...


def mcp_server(name: str, player: Player) -> Server[Any]:
    """A server whose clients all play `player`."""

    async def list_tools(_context: Any, _params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=[as_mcp_tool(t) for t in player.tools])

    async def call_tool(context: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        text, valid = await player.play(as_action(params.name, params.arguments), tool_use_id(context.meta))
        return as_result(text, valid)

    return Server(name, instructions=player.observation, on_list_tools=list_tools, on_call_tool=call_tool)


def as_mcp_tool(definition: Mapping[str, Any]) -> mcp_types.Tool:
    """A tool definition in MCP's form."""
    function = definition["function"]
    return mcp_types.Tool(
        name=function["name"], description=function["description"], input_schema=function["parameters"]
    )


def as_action(name: str, arguments: Mapping[str, Any] | None) -> str:
    """A tool call as the action of a world."""
    return json.dumps({"name": name, "arguments": dict(arguments or {})}, ensure_ascii=False)


def as_result(text: str, valid: bool) -> mcp_types.CallToolResult:
    """An observation as the result of a tool call."""
    return mcp_types.CallToolResult(content=[mcp_types.TextContent(text=text)], is_error=not valid)


def tool_use_id(meta: Mapping[str, Any] | None) -> str | None:
    """The id of the model's tool call, where the client sends it along."""
    found = (meta or {}).get(_TOOL_USE_ID)
    return found if isinstance(found, str) else None


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client over stdin and stdout, until it closes them."""
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


class McpGate:
    """An ASGI app that serves many players at /<secret>/mcp, each to whoever knows its secret."""

    def __init__(self) -> None:
        self._managers: dict[str, StreamableHTTPSessionManager] = {}

    @asynccontextmanager
    async def serving(self, server: Server[Any]) -> AsyncIterator[str]:
        """While the block runs, `server` answers at the path that is given: "/<secret>/mcp"."""
        secret = secrets.token_urlsafe(24)
        manager = StreamableHTTPSessionManager(
            server, stateless=True, json_response=True, max_request_body_size=MAX_BODY_BYTES
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(manager.run())
            self._managers[secret] = manager
            stack.callback(self._managers.pop, secret)
            yield f"/{secret}/mcp"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; 404 for a path that is not being served."""
        secret, _, rest = scope.get("path", "").lstrip("/").partition("/")
        manager = self._managers.get(secret)
        if manager is None or rest.strip("/") != "mcp":
            await JSONResponse({"error": "nothing is served here"}, 404)(scope, receive, send)
            return
        await manager.handle_request(scope, receive, send)
