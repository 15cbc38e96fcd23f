"""A world as an OpenEnv service: WebSocket /ws, and HTTP /reset, /step, /state, /health, /metadata, /schema.

    client = openenv.core.generic_client.GenericEnvClient(base_url="http://127.0.0.1:8000").sync()
    client.reset(seed=0)                          or reset(task="sql-tiny/test/0000/highest")
    client.step({"name": "query", "arguments": {"sql": "SELECT 1"}})        or step({"text": "..."})

Messages are those of OpenEnv (openenv/core/env_server/http_server.py of its package, 0.10). A WebSocket connection has
an episode of its own; over HTTP, reset answers with an `episode_id` that step and state have to name. An observation is
{"text", "tools" (after reset), "task_id", "episode_id", "anchor", "state_digest", "valid_action", "terminated",
"truncated"}. A reward that could not be measured is an error, never a number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from palestra.envs.errors import SessionError
from palestra.envs.serving.episode import EXPECTED, Episode, Episodes, Turn
from palestra.envs.serving.mcp_server import MAX_BODY_BYTES

_ACTION_SCHEMA = {
    "type": "object",
    "description": "a tool call, or text",
    "properties": {
        "name": {"type": "string"},
        "arguments": {"type": "object"},
        "text": {"type": "string"},
    },
}


class OpenEnvService:
    """Routes over `episodes`. `name` and `description` are what /metadata says."""

    def __init__(self, episodes: Episodes, name: str, description: str) -> None:
        self._episodes, self._name, self._description = episodes, name, description

    def app(self) -> Starlette:
        """The ASGI application. Close the episodes when it ends."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metadata", self._metadata),
                Route("/schema", self._schema),
                Route("/reset", self._reset, methods=["POST"]),
                Route("/step", self._step, methods=["POST"]),
                Route("/state", self._state),
                WebSocketRoute("/ws", self._connected),
            ]
        )

    async def _health(self, _request: Request) -> Response:
        return JSONResponse({"status": "healthy"})

    async def _metadata(self, _request: Request) -> Response:
        return JSONResponse({"name": self._name, "description": self._description, "version": "1"})

    async def _schema(self, _request: Request) -> Response:
        anything = {"type": "object"}
        return JSONResponse({"action": _ACTION_SCHEMA, "observation": anything, "state": anything})

    async def _reset(self, request: Request) -> Response:
        body = await _body(request)
        if isinstance(body, Response):
            return body
        name = body.get("episode_id")
        try:
            episode = self._named(name) or self._episodes.open(str(name or ""))
            return JSONResponse(await _reset(episode, body))
        except EXPECTED as error:
            return _refused(error)

    async def _step(self, request: Request) -> Response:
        body = await _body(request)
        if isinstance(body, Response):
            return body
        try:
            episode = self._episodes.get(str(body.get("episode_id", "")))
            return JSONResponse(_answer(episode, await episode.act(_action(body.get("action")))))
        except EXPECTED as error:
            return _refused(error)

    async def _state(self, request: Request) -> Response:
        try:
            return JSONResponse(_state(self._episodes.get(request.query_params.get("episode_id", ""))))
        except EXPECTED as error:
            return _refused(error)

    def _named(self, name: object) -> Episode | None:
        """The open episode of this name, for a client that resets it again."""
        try:
            return self._episodes.get(str(name)) if name else None
        except SessionError:
            return None

    async def _connected(self, socket: WebSocket) -> None:
        await socket.accept()
        try:
            episode = self._episodes.open()
        except SessionError as error:
            await socket.send_json(_error("CAPACITY_REACHED", str(error)))
            await socket.close()
            return
        try:
            await _converse(socket, episode)
        except WebSocketDisconnect:
            pass
        finally:
            self._episodes.close(episode.id)


async def _converse(socket: WebSocket, episode: Episode) -> None:
    """Answer messages until the client closes."""
    while True:
        try:
            message = json.loads(await socket.receive_text())
        except (json.JSONDecodeError, RecursionError) as error:
            await socket.send_json(_error("INVALID_JSON", f"invalid JSON: {error}"))
            continue
        if isinstance(message, dict) and message.get("type") == "close":
            await socket.close()
            return
        await socket.send_json(await _replied(episode, message))


async def _replied(episode: Episode, message: Any) -> dict[str, Any]:
    """The answer to one message."""
    if not isinstance(message, dict) or not isinstance(message.get("data", {}), dict):
        return _error("VALIDATION_ERROR", "a message is an object with type and data")
    data = message.get("data", {})
    try:
        match message.get("type"):
            case "reset":
                return {"type": "observation", "data": await _reset(episode, data)}
            case "step":
                return {"type": "observation", "data": _answer(episode, await episode.act(_action(data)))}
            case "state":
                return {"type": "state", "data": _state(episode)}
    except EXPECTED as error:
        return _error("EXECUTION_ERROR", str(error))
    return _error(
        "UNKNOWN_TYPE", f"unknown message type {str(message.get('type'))[:80]!r}: reset, step, state, close"
    )


async def _reset(episode: Episode, data: Mapping[str, Any]) -> dict[str, Any]:
    seed, task = data.get("seed"), data.get("task")
    if seed is not None and (not isinstance(seed, int) or seed < 0):
        raise SessionError(f"a seed is a whole number from 0, got {seed!r}")
    if task is not None and not isinstance(task, str):
        raise SessionError(f"a task is named by its id, got {task!r}")
    answer = _answer(episode, await episode.reset(seed, task))
    answer["observation"]["tools"] = episode.tools
    return answer


def _answer(episode: Episode, turn: Turn) -> dict[str, Any]:
    info = {name: turn.info[name] for name in ("anchor", "state_digest", "valid_action")}
    observation = {
        "text": turn.observation,
        "task_id": episode.task.id,
        "episode_id": episode.id,
        "terminated": turn.terminated,
        "truncated": turn.truncated,
        **info,
    }
    return {"observation": observation, "reward": turn.reward, "done": turn.over}


def _state(episode: Episode) -> dict[str, Any]:
    return {"episode_id": episode.id, "step_count": episode.steps, "task_id": episode.task.id}


def _action(data: object) -> str:
    """The action of a world. Raises SessionError for what is neither a tool call nor text."""
    if isinstance(data, Mapping):
        if isinstance(data.get("text"), str):
            return str(data["text"])
        if "name" in data:
            return json.dumps(
                {"name": data["name"], "arguments": data.get("arguments", {})}, ensure_ascii=False
            )
    raise SessionError('an action is {"name": ..., "arguments": {...}} or {"text": ...}')


def _error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message}}


def _refused(error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 404 if isinstance(error, SessionError) else 409)


async def _body(request: Request) -> dict[str, Any] | Response:
    """The JSON object of a request of bounded size."""
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MAX_BODY_BYTES:
            return JSONResponse({"error": f"a request may have {MAX_BODY_BYTES} bytes"}, 413)
    try:
        body = json.loads(raw or b"{}")
    except (ValueError, RecursionError) as error:
        return JSONResponse({"error": f"not JSON: {error}"}, 400)
    return body if isinstance(body, dict) else JSONResponse({"error": "the body must be a JSON object"}, 400)
