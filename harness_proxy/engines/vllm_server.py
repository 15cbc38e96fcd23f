"""A vLLM server as a child process: started with what the recorder needs, watched, and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from palestra.harness_proxy.engines.base import EngineError

_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # pause, reload_weights and their like are served only so
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_INSIDE = Path(__file__).with_name("vllm_side")
"""What the server imports of ours."""
_FIND = """
import importlib.util, pathlib
served = pathlib.Path(importlib.util.find_spec("vllm").origin).parent / "entrypoints"
print(any("enable_scale_out" in file.read_text() for file in served.rglob("*.py")))
"""
_TAIL_BYTES = 3000


@dataclass(frozen=True)
class VllmOptions:
    """How to start one. `python` must have vLLM installed; it may be of another environment than ours."""

    model: Path | str
    name: str = "policy"
    python: str = os.environ.get("PALESTRA_VLLM_PYTHON", sys.executable)
    host: str = "127.0.0.1"
    port: int = 0
    arguments: Sequence[str] = ()
    """More arguments for `vllm serve`, such as ("--tensor-parallel-size", "2")."""
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 900.0
    log: Path = Path("vllm.log")

    def command(self, port: int) -> list[str]:
        """What is run."""
        return [
            *(self.python, "-m", "vllm.entrypoints.cli.main", "serve", str(self.model)),
            *("--host", self.host, "--port", str(port), "--served-model-name", self.name),
            *("--worker-extension-cls", "palestra_receiver.WeightReceiver"),
            *("--logprobs-mode", "processed_logprobs", *self._token_api()),
            *self.arguments,
        ]

    def variables(self) -> dict[str, str]:
        """The environment that it runs in."""
        merged = os.environ | _ENVIRONMENT | dict(self.environment)
        return merged | {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_INSIDE), merged.get("PYTHONPATH")]))
        }

    def _token_api(self) -> list[str]:
        """What serves token ids, in versions that want to be asked; read from vLLM's source, since importing it takes
        ten seconds. Raises EngineError where `python` has no vLLM."""
        found = subprocess.run([self.python, "-c", _FIND], capture_output=True, text=True)
        if found.returncode:
            raise EngineError(
                f"{self.python} has no vLLM: pip install vllm there, or name another interpreter (--python, "
                "PALESTRA_VLLM_PYTHON)"
            )
        return ["--enable-scale-out"] if "True" in found.stdout else []


class VllmServer:
    """A running server. Make one with `start`."""

    def __init__(self, options: VllmOptions) -> None:
        self.options = options
        self.port = options.port or _free_port(options.host)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    async def start(cls, options: VllmOptions) -> VllmServer:
        """Start and wait until it answers. Raises EngineError with the end of its log where it does not."""
        server = cls(options)
        await server.restart()
        return server

    @property
    def base_url(self) -> str:
        """For clients: http://host:port/v1."""
        return f"http://{self.options.host}:{self.port}/v1"

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    async def restart(self) -> None:
        """Kill what is left of it and start anew. Raises EngineError."""
        await self.aclose()
        self.options.log.parent.mkdir(parents=True, exist_ok=True)
        with self.options.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.options.command(self.port),
                env=self.options.variables(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(self.options.ready_timeout_s):
                await self._answers()
        except TimeoutError:
            await self.aclose()
            raise self._failed(f"did not answer within {self.options.ready_timeout_s:g} s") from None
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        """Stop it and all of its processes. Calling it twice is fine."""
        process, self._process = self._process, None
        if process is None:
            return
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, 10)
        _signal_group(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)

    async def _answers(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                if not self.running:
                    raise self._failed("ended while it was starting")
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    async with session.get(f"http://{self.options.host}:{self.port}/health") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.2)

    def _failed(self, how: str) -> EngineError:
        with self.options.log.open("rb") as log:
            log.seek(max(self.options.log.stat().st_size - _TAIL_BYTES, 0))
            tail = log.read().decode(errors="replace")
        return EngineError(f"vLLM {how}. The end of {self.options.log}:\n{tail}")


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _free_port(host: str) -> int:
    with socket.create_server((host, 0)) as taken:
        return int(taken.getsockname()[1])
