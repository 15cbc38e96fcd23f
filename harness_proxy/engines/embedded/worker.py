"""The process behind `ProcessEngine`: a TorchEngine that answers over a socket until the other side is gone.

Started as `python -m palestra.harness_proxy.engines.embedded.worker FD`. Messages are pickled tuples
(number, method, arguments) in, (number, ok, result or exception) out; both sides are this package.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from palestra.harness_proxy.engines.base import EngineError
from palestra.harness_proxy.engines.embedded.channel import Channel
from palestra.harness_proxy.engines.embedded.engine import TorchEngine
from palestra.harness_proxy.engines.embedded.loading import read_weights
from palestra.harness_proxy.engines.embedded.qwen3 import Qwen3Config
from palestra.trajectories.model import Sampling

Message = tuple[int, str, tuple[Any, ...]]


class Worker:
    """Answers one connection."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._engine: TorchEngine | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Serve until the other side closes the connection."""
        async with asyncio.TaskGroup() as self._group:  # an unexpected error in a task ends the process
            await self._receive()
            if self._engine is not None:
                await self._engine.aclose()

    async def _receive(self) -> None:
        """Take messages until there is nobody to send them."""
        try:
            while True:
                self._accept(await self._channel.receive())
        except (EOFError, OSError):
            self._channel.close()

    def _accept(self, message: Message) -> None:
        number, method, arguments = message
        if method == "cancel":
            if task := self._tasks.get(number):
                task.cancel()
            return
        self._tasks[number] = self._group.create_task(self._answer(number, method, arguments))

    async def _answer(self, number: int, method: str, arguments: tuple[Any, ...]) -> None:
        try:
            answer = (number, True, await getattr(self, method)(*arguments))
        except (EngineError, ValueError, OSError) as error:
            answer = (number, False, error)
        finally:
            del self._tasks[number]
        self._channel.send(answer)

    async def start(self, config: Qwen3Config, file: Path, options: dict[str, Any]) -> None:
        self._engine = TorchEngine(config, read_weights(file), **options)

    async def load(self, model_dir: Path, options: dict[str, Any]) -> None:
        self._engine = TorchEngine.load(model_dir, **options)

    async def update_weights(self, file: Path, version: int) -> None:
        await self.engine.update_weights(await asyncio.to_thread(read_weights, file), version)

    async def generate(self, prompt_ids: list[int], sampling: Sampling, session: str) -> Any:
        return await self.engine.generate(prompt_ids, sampling, session=session)

    async def probe(self) -> Any:
        return await self.engine.probe()

    async def pause(self) -> None:
        await self.engine.pause()

    async def resume(self) -> None:
        await self.engine.resume()

    async def drain(self) -> None:
        await self.engine.drain()

    @property
    def engine(self) -> TorchEngine:
        if self._engine is None:
            raise EngineError("the engine has not started")
        return self._engine


async def _main(descriptor: int) -> None:
    await Worker(await Channel.open(socket.socket(fileno=descriptor))).run()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side decides when this one ends
    asyncio.run(_main(int(sys.argv[1])))
