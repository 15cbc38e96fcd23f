"""Steps of a program that acts on the machine of a world by itself: one for each reply that it acted on.

The request after a reply comes when the program has done what the reply asked for. Then the machine is looked at, and
the step is written down: the reply's tool calls are its action, what the program sent since is its observation, its
anchor is the state that the reply was sampled in. Several calls of one reply are one step, since nobody saw the states
between them. Requests that continue nothing (titles) make no step, nor do those for a summary of what was seen before.
"""

from __future__ import annotations

from typing import Any

import orjson

from palestra.harness_proxy.continued import Continued
from palestra.rollouts.errors import RolloutError
from palestra.rollouts.harnesses.base import Line
from palestra.rollouts.world import World
from palestra.trajectories.model import Message, ToolCall

_SIDE_JOBS = ("auxiliary", "compaction")


class Onlooker:
    """The observer of a session (`Line.watch`) who writes the steps of `world`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._seen: set[int] = set()

    async def __call__(self, continued: Continued) -> str | None:
        """The step of a reply that was acted on; the turns that are spent, or the world that broke, end the session."""
        if self._world.over:
            return "turns"
        acted = any(message.role == "tool" for message in continued.since)
        if continued.call in self._seen or not (acted or continued.role not in _SIDE_JOBS):
            return None
        self._seen.add(continued.call)
        try:
            await self._take(continued)
        except RolloutError:  # the world remembers it, and has no score
            return "world"
        return "turns" if self._world.over else None

    async def finish(self, line: Line) -> None:
        """The program has ended: its last reply is a step too. Raises RolloutError."""
        last = next((r for r in reversed(line.replies()) if r.role == "agent"), None)
        if last is not None and last.call not in self._seen and not self._world.over:
            await self._take(last)

    async def _take(self, continued: Continued) -> None:
        calls = continued.reply.tool_calls
        observation = "\n".join(message.content for message in continued.since)
        one = calls[0].id if len(calls) == 1 else None
        await self._world.witness(action_of(continued.reply), observation, continued.call, one)


def action_of(reply: Message) -> str:
    """A tool call as the JSON action of an environment, several as a list of them, none as the text."""
    actions = [_action(call) for call in reply.tool_calls]
    if not actions:
        return reply.content
    return orjson.dumps(actions[0] if len(actions) == 1 else actions).decode()


def _action(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = orjson.loads(call.arguments or "{}")
    except orjson.JSONDecodeError:
        arguments = call.arguments
    return {"name": call.name, "arguments": arguments}
