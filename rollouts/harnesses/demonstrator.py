"""Demonstrations: a scripted agent that speaks through the proxy as a model would.

    demonstrator = Demonstrator(script)
    proxy = Proxy(ScriptedEngine(rendering, demonstrator.reply), rendering)
    trajectories = await Runner(proxy, demonstrator).run(jobs, spec)

The script decides what to do from what it sees; its words pass through the same rendering, recording and
environment as a policy's, so the recorded tokens are exactly those that a policy would have to produce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from palestra.harness_proxy.engines.base import EngineError
from palestra.rollouts.harnesses.base import Endpoint
from palestra.rollouts.harnesses.tool_loop import ToolLoop
from palestra.rollouts.world import World

Script = Callable[[World], Iterator[str]]
"""Yields the assistant's replies, in the model's own text format; may look at the world between them."""


class Demonstrator:
    """A `ToolLoop` whose engine plays `script`. Pass `reply` to the `ScriptedEngine` behind the proxy."""

    name = "demonstrator"
    version = "1"

    def __init__(self, script: Script) -> None:
        self._script = script
        self._loop = ToolLoop()
        self._playing: dict[str, Iterator[str]] = {}

    def reply(self, prompt_ids: list[int], session: str) -> str | EngineError:
        """The next words of the demonstration that runs as `session`.

        An EngineError, which fails the rollout at boundary provider, where the script has ended or broken.
        """
        try:
            return next(self._playing[session])
        except StopIteration:
            return EngineError("the demonstration ended before the episode did")
        except Exception as error:  # a script is as foreign as a model; its rollout alone fails
            return EngineError(f"the demonstration broke: {type(error).__name__}: {error}")

    async def run(self, world: World, endpoint: Endpoint) -> None:
        """Play one demonstration to the end of the episode."""
        self._playing[endpoint.session] = self._script(world)
        try:
            await self._loop.run(world, endpoint)
        finally:
            del self._playing[endpoint.session]

    async def aclose(self) -> None:
        """Close the connection pool."""
        await self._loop.aclose()
