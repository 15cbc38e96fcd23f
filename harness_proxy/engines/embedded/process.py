"""The embedded engine in a process of its own, so that decoding and the event loop run side by side.

A torch operation of a small model takes microseconds, and the interpreter lock is given and taken around
each. In one process, an event loop with work to do (a proxy, environments) and the decoding thread therefore
take turns rather than two cores. Here they are two interpreters: requests and replies go over a socket pair,
weights through a temporary file.

The same replies as `TorchEngine`, about 0.1 ms later. worker.py is the other side.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from palestra.harness_proxy.engines.base import Capability, EngineUnavailableError, Generation
from palestra.harness_proxy.engines.embedded.channel import Channel
from palestra.harness_proxy.engines.embedded.loading import write_weights
from palestra.harness_proxy.engines.embedded.qwen3 import Qwen3Config
from palestra.trajectories.model import Sampling

_WORKER = "palestra.harness_proxy.engines.embedded.worker"


class ProcessEngine:
    """A `TorchEngine` over there. Implements `Engine`; made by `start` or `load`, for one event loop."""

    def __init__(self, channel: Channel, process: subprocess.Popen[bytes], version: int) -> None:
        self._channel, self._process, self._version = channel, process, version
        self._numbers = itertools.count()
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._lost: str | None = None
        self._receiving = asyncio.create_task(self._receive(), name="palestra-engine-replies")

    @classmethod
    async def start(
        cls, config: Qwen3Config, weights: Mapping[str, Tensor], *, version: int = 0, **options: Any
    ) -> ProcessEngine:
        """Start a process with these weights; `options` are those of `TorchEngine`."""
        with tempfile.TemporaryDirectory(prefix="palestra-weights-") as directory:
            file = Path(directory) / "model.safetensors"
            await asyncio.to_thread(write_weights, weights, file)
            return await cls._spawn(version, "start", config, file, options | {"version": version})

    @classmethod
    async def load(cls, model_dir: str | Path, *, version: int = 0, **options: Any) -> ProcessEngine:
        """Start a process over a local Hugging Face directory; `options` are those of `TorchEngine.load`."""
        return await cls._spawn(version, "load", Path(model_dir), options | {"version": version})

    @classmethod
    async def _spawn(cls, version: int, method: str, *arguments: object) -> ProcessEngine:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", _WORKER, str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        engine = cls(await Channel.open(ours), process, version)
        try:
            await engine._call(method, *arguments)
        except BaseException:
            await engine.aclose()
            raise
        return engine

    @property
    def policy_version(self) -> int:
        """The version of the weights that the last `update_weights` gave."""
        return self._version

    async def probe(self) -> Capability:
        """As `TorchEngine.probe`."""
        found: Capability = await self._call("probe")
        return found

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str = ""
    ) -> Generation:
        """As `TorchEngine.generate`; raises EngineUnavailableError too when the process is gone."""
        reply: Generation = await self._call("generate", list(prompt_ids), sampling, session)
        return reply

    async def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """As `TorchEngine.update_weights`."""
        with tempfile.TemporaryDirectory(prefix="palestra-weights-") as directory:
            file = Path(directory) / "model.safetensors"
            await asyncio.to_thread(write_weights, weights, file)
            await self._call("update_weights", file, version)
        self._version = version

    async def pause(self) -> None:
        """As `TorchEngine.pause`."""
        await self._call("pause")

    async def resume(self) -> None:
        """As `TorchEngine.resume`."""
        await self._call("resume")

    async def drain(self) -> None:
        """As `TorchEngine.drain`."""
        await self._call("drain")

    async def aclose(self) -> None:
        """End the process; requests in flight end with EngineUnavailableError."""
        self._receiving.cancel()
        self._lose("the engine was closed")
        await asyncio.to_thread(self._process.wait)

    async def _call(self, method: str, *arguments: object) -> Any:
        if self._lost is not None:
            raise EngineUnavailableError(self._lost)
        number = next(self._numbers)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            self._send((number, method, arguments))
            return await future
        except asyncio.CancelledError:
            self._send((number, "cancel", ()))
            raise
        finally:
            self._pending.pop(number, None)

    def _send(self, message: tuple[int, str, tuple[object, ...]]) -> None:
        if self._lost is None:
            self._channel.send(message)

    async def _receive(self) -> None:
        """Take replies for as long as they come."""
        try:
            while True:
                number, ok, value = await self._channel.receive()
                future = self._pending.get(number)
                if future is None or future.done():
                    continue
                if ok:
                    future.set_result(value)
                else:
                    future.set_exception(value)
        except (EOFError, OSError):
            self._lose_process()

    def _lose_process(self) -> None:
        code = self._process.poll()
        self._lose(
            f"the engine's process ended (exit code {code}); its error output says why: start a new one"
        )

    def _lose(self, why: str) -> None:
        """Close the connection, which ends the process, and tell everyone who waits."""
        if self._lost is not None:
            return
        self._lost = why
        self._channel.close()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(EngineUnavailableError(why))
