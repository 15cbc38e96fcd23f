"""How new weights reach a vLLM server: through a file, as adapters alone, or from process to process.

file       a safetensors file that the server reads: any model, one machine or a shared file system
adapters   the low-rank adapters alone, as files: a small part of the bytes; the base model is never sent
broadcast  tensor by tensor between the trainer and the workers of vLLM, over NCCL or gloo: no file, no copy in memory
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from palestra.harness_proxy.engines.base import EngineError, EngineUnavailableError
from palestra.harness_proxy.engines.weights import save_weights, untied

if TYPE_CHECKING:
    from torch import Tensor

Request = Callable[..., Awaitable[dict[str, Any]]]
"""(method, path, body) to the answer; raises EngineError."""

ADAPTER = "policy-adapter"
"""What the server calls the adapters."""
LOAD_ADAPTER = "/v1/load_lora_adapter"
"""Answers in words."""


class Publisher(Protocol):
    """Carries weights to a server. `prepare` while it samples, `send` while it is paused."""

    serves: str | None
    """The name that requests ask for, where it is another than the model's."""

    def prepare(self, weights: Mapping[str, Tensor]) -> None:
        """Take `weights`, by their Hugging Face names; those before are forgotten once they are replaced."""
        ...

    async def send(self, request: Request) -> None:
        """Have the server load what was prepared. Raises EngineError."""
        ...

    async def send_again(self, request: Request) -> None:
        """The same to a server that was started again; nothing where nothing was sent yet. Raises EngineError."""
        ...

    def close(self) -> None:
        """Remove what was kept."""
        ...


class _Files(ABC):
    """The directory of the weights that are served, and of those that come next."""

    serves: str | None = None

    def __init__(self) -> None:
        self._served: Path | None = None
        self._next: Path | None = None

    def prepare(self, weights: Mapping[str, Tensor]) -> None:
        _removed(self._next)
        self._next = Path(tempfile.mkdtemp(prefix="palestra-weights-", dir=_shared_memory()))
        self._write(weights, self._next)

    async def send(self, request: Request) -> None:
        assert self._next is not None, "prepare comes first"
        await self._load(self._next, request)
        _removed(self._served)
        self._served, self._next = self._next, None

    async def send_again(self, request: Request) -> None:
        if self._served is not None:
            await self._load(self._served, request)

    def close(self) -> None:
        _removed(self._served)
        _removed(self._next)
        self._served = self._next = None

    @abstractmethod
    def _write(self, weights: Mapping[str, Tensor], directory: Path) -> None:
        """Put `weights` into `directory`."""

    @abstractmethod
    async def _load(self, directory: Path, request: Request) -> None:
        """Have the server read `directory`. Raises EngineError."""


class FileWeights(_Files):
    """All weights through a safetensors file."""

    def __init__(self, *, untie: bool = False) -> None:
        """untie: publish the output head beside the embedding that it is. On the CPU vLLM keeps a packed copy of the
        head, which a reload of the embedding leaves as it was: serve an `untied_copy` there, and set this."""
        super().__init__()
        self._untie = untie

    def _write(self, weights: Mapping[str, Tensor], directory: Path) -> None:
        save_weights(untied(weights) if self._untie else weights, directory / "model.safetensors")

    async def _load(self, directory: Path, request: Request) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(directory)}}
        await request("POST", "/collective_rpc", reload)


class AdapterWeights(_Files):
    """Low-rank adapters in the form of peft. The server needs `--enable-lora`, `--max-lora-rank` of at least the rank,
    and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """config: adapter_config.json of peft."""
        super().__init__()
        self._config = dict(config)

    def _write(self, weights: Mapping[str, Tensor], directory: Path) -> None:
        (directory / "adapter_config.json").write_text(json.dumps(self._config))
        save_weights(weights, directory / "adapter_model.safetensors")

    async def _load(self, directory: Path, request: Request) -> None:
        loaded = {"lora_name": ADAPTER, "lora_path": str(directory), "load_inplace": True}
        await request("POST", LOAD_ADAPTER, loaded)
        self.serves = ADAPTER


class BroadcastWeights:
    """From process to process. The server needs `vllm_side.palestra_receiver`, which `vllm_server` gives it; both sides
    see one another at `host`. A server that was started again is without weights until the next ones come."""

    serves: str | None = None

    def __init__(self, *, host: str = "127.0.0.1", untie: bool = False, timeout_s: float = 600.0) -> None:
        """untie: as of FileWeights."""
        self._host, self._untie, self._timeout_s = host, untie, timeout_s
        self._weights: Mapping[str, Tensor] = {}
        self._group: Any = None
        self._sent = False

    def prepare(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = untied(weights) if self._untie else weights

    async def send(self, request: Request) -> None:
        if self._group is None:
            self._group = await self._meet(request)
        specs = [(n, str(w.dtype).removeprefix("torch."), list(w.shape)) for n, w in self._weights.items()]
        receive = {"method": "palestra_receive", "kwargs": {"specs": specs}}
        try:
            await _both(request("POST", "/collective_rpc", receive), asyncio.to_thread(self._broadcast))
        except BaseException:
            self._group = None
            raise
        self._weights, self._sent = {}, True

    async def send_again(self, request: Request) -> None:
        self._group = None
        if self._sent:
            raise EngineUnavailableError(
                "vLLM was started again and has no weights until the next are published: broadcast ones are not kept"
            )

    def close(self) -> None:
        self._group, self._weights = None, {}

    async def _meet(self, request: Request) -> Any:
        from palestra.harness_proxy.engines.vllm_side.palestra_receiver import dist

        answer = await request("POST", "/collective_rpc", {"method": "palestra_workers"})
        size = 1 + len(answer["results"])
        limit = timedelta(seconds=self._timeout_s)
        store = dist.TCPStore(self._host, 0, size, is_master=True, timeout=limit, wait_for_workers=False)
        there = {"host": self._host, "port": store.port, "size": size, "timeout_s": self._timeout_s}
        join = request("POST", "/collective_rpc", {"method": "palestra_join", "kwargs": there})
        return await _both(join, asyncio.to_thread(self._joined, store, size))

    def _joined(self, store: Any, size: int) -> Any:
        from palestra.harness_proxy.engines.vllm_side.palestra_receiver import group

        return group(store, 0, size, next(iter(self._weights.values())).device, self._timeout_s)

    def _broadcast(self) -> None:
        from palestra.harness_proxy.engines.vllm_side.palestra_receiver import broadcast

        for value in self._weights.values():
            broadcast(self._group, value.contiguous())


async def _both(theirs: Awaitable[Any], ours: Awaitable[Any]) -> Any:
    """What `ours` gives, once both sides are through; the server's refusal does not wait for a meeting without it."""
    answer, mine = asyncio.ensure_future(theirs), asyncio.ensure_future(ours)
    await asyncio.wait([answer, mine], return_when=asyncio.FIRST_EXCEPTION)
    if answer.done() and answer.exception() is not None:
        mine.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise answer.exception() or AssertionError
    try:
        result = await mine
    except RuntimeError as error:  # torch's, of a peer that is gone
        answer.cancel()
        raise EngineError(f"weights could not be broadcast: {error}") from error
    await answer
    return result


def _removed(directory: Path | None) -> None:
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


def _shared_memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
