"""The engine that a training run samples with: the embedded one, or vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import Tensor

from palestra.harness_proxy.engines.base import Engine
from palestra.harness_proxy.engines.publishing import (
    AdapterWeights,
    BroadcastWeights,
    FileWeights,
    Publisher,
)
from palestra.harness_proxy.engines.vllm import InFlight, VllmEngine
from palestra.harness_proxy.engines.vllm_server import VllmOptions, VllmServer
from palestra.harness_proxy.engines.weights import untied_copy
from palestra.rollouts.local import child_engine


class TrainableEngine(Engine, Protocol):
    """An engine whose weights can be replaced while it serves."""

    async def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Serve `weights` from now on, as policy version `version`."""
        ...


Publish = Literal["file", "adapters", "broadcast"]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What samples, and where."""

    kind: Literal["embedded", "vllm"] = "embedded"
    """embedded: small Qwen3 models, on the CPU. vllm: any model that vLLM serves."""
    url: str | None = None
    """A vLLM that runs already, on this file system; by default one is started and stopped with the run."""
    python: str | None = None
    """The interpreter that has vLLM, if not this one."""
    arguments: tuple[str, ...] = ()
    """More of `vllm serve`, such as ["--tensor-parallel-size", "2"]."""
    environment: Mapping[str, str] = field(default_factory=dict)
    in_flight: InFlight = "wait"
    publish: Publish = "file"
    """How new weights get to vLLM: through a file that both see; the adapters of `policy.lora` alone; or from process
    to process, over NCCL or gloo, which keeps nothing for a vLLM that dies."""
    max_kv_usage: float = 0.9
    """New requests wait from this share of vLLM's KV cache on; 1 leaves that to vLLM."""
    colocated: bool = False
    """vLLM on the accelerator that trains as well: it gives its memory back during each update."""
    cpu: bool = False
    """vLLM on the CPU: serve a copy of the model that a reload changes whole."""


async def training_engine(
    options: EngineOptions,
    model: Path,
    run_dir: Path,
    *,
    deterministic: bool = False,
    adapter: Mapping[str, Any] | None = None,
) -> TrainableEngine:
    """Start what `options` say for the model in `model`. Raises EngineError, and OSError for the model.

    adapter: `lora.adapter_config` of what is published, where that is adapters.
    """
    if options.kind == "embedded":
        return await child_engine(model, deterministic=deterministic)
    if options.url is not None:
        return _engine(options, options.url, adapter)
    server = await VllmServer.start(_vllm(options, model, run_dir, adapter))
    return _engine(options, server.base_url, adapter, server)


def _engine(
    options: EngineOptions, url: str, adapter: Mapping[str, Any] | None, server: VllmServer | None = None
) -> VllmEngine:
    return VllmEngine(
        url,
        "policy",
        in_flight=options.in_flight,
        publisher=_publisher(options, adapter),
        server=server,
        max_kv_usage=options.max_kv_usage,
    )


def _publisher(options: EngineOptions, adapter: Mapping[str, Any] | None) -> Publisher:
    if options.publish == "broadcast":
        return BroadcastWeights(untie=options.cpu)
    return FileWeights(untie=options.cpu) if adapter is None else AdapterWeights(adapter)


def _vllm(
    options: EngineOptions, model: Path, run_dir: Path, adapter: Mapping[str, Any] | None
) -> VllmOptions:
    served = untied_copy(model, run_dir / "served") if options.cpu else model
    sleeping = ("--enable-sleep-mode",) if options.colocated else ()
    adapting = ("--enable-lora", "--max-loras", "1", "--max-lora-rank", str(adapter["r"])) if adapter else ()
    arguments = (*options.arguments, *sleeping, *adapting)
    chosen = VllmOptions(
        served, arguments=arguments, environment=options.environment, log=run_dir / "vllm.log"
    )
    return chosen if options.python is None else replace(chosen, python=options.python)
