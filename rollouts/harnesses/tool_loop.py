"""The plain loop for models with native tool calls: ask, act, answer, until the world is over."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import orjson

from palestra.rollouts.harnesses.base import Endpoint
from palestra.rollouts.harnesses.chat_client import ChatClient, ChatReply
from palestra.rollouts.world import World


class ToolLoop:
    """Sends the whole history each turn, as SDK loops do, and lets the proxy find what is new."""

    name = "tool-loop"
    version = "1"

    def __init__(self, system: str | None = None) -> None:
        """`system`: a system prompt, or None for no system message."""
        self._system = system
        self._client = ChatClient()

    async def run(self, world: World, endpoint: Endpoint) -> None:
        """Play until the world is over or the session's budget is spent. Raises RolloutError."""
        messages: list[Mapping[str, Any]] = [{"role": "user", "content": seen(world)}]
        if self._system:
            messages.insert(0, {"role": "system", "content": self._system})
        tools = world.tools
        while not world.over:
            reply = await self._client.chat(endpoint, messages, tools)
            if reply.stopped is not None:
                world.stop()
                return
            messages.append(reply.message)
            messages.extend(await self._answer(world, reply))

    async def aclose(self) -> None:
        """Close the connection pool."""
        await self._client.aclose()

    async def _answer(self, world: World, reply: ChatReply) -> list[Mapping[str, Any]]:
        """Take the steps that the reply asks for; the messages that tell the model what came of them."""
        calls = reply.message.get("tool_calls") or []
        if not calls:
            await world.act(reply.message.get("content") or "", reply.call)
            return [{"role": "user", "content": seen(world)}]
        answers: list[Mapping[str, Any]] = []
        for call in calls:
            if world.over:
                break
            await world.act(_action(call["function"]), reply.call, call["id"])
            answers.append({"role": "tool", "tool_call_id": call["id"], "content": seen(world)})
        return answers


def seen(world: World) -> str | list[dict[str, Any]]:
    """The observation; with its image, where it has one, as content parts. The proxy keeps the image by its hash."""
    if world.image is None:
        return world.observation
    url = f"data:image/png;base64,{base64.b64encode(world.image).decode()}"
    return [{"type": "text", "text": world.observation}, {"type": "image_url", "image_url": {"url": url}}]


def _action(function: Mapping[str, Any]) -> str:
    """The call as the JSON action of an environment; arguments that do not parse are passed on as text."""
    try:
        arguments = orjson.loads(function["arguments"] or "{}")
    except orjson.JSONDecodeError:
        arguments = function["arguments"]
    return orjson.dumps({"name": function["name"], "arguments": arguments}).decode()
