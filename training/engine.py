"""The engine that a training run samples with: the embedded one, or vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from torch import Tensor

from palestra.harness_proxy.engines.base import Engine
from palestra.harness_proxy.engines.vllm import InFlight, VllmEngine
from palestra.harness_proxy.engines.vllm_server import VllmOptions, VllmServer
from palestra.harness_proxy.engines.weights import untied_copy
from palestra.rollouts.local import child_engine


class TrainableEngine(Engine, Protocol):
    """An engine whose weights can be replaced while it serves."""

    async def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Serve `weights` from now on, as policy version `version`."""
        ...


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
    max_kv_usage: float = 0.9
    """New requests wait from this share of vLLM's KV cache on; 1 leaves that to vLLM."""
    colocated: bool = False
    """vLLM on the accelerator that trains as well: it gives its memory back during each update."""
    cpu: bool = False
    """vLLM on the CPU: serve a copy of the model that a reload changes whole."""


async def training_engine(
    options: EngineOptions, model: Path, run_dir: Path, *, deterministic: bool = False
) -> TrainableEngine:
    """Start what `options` say for the model in `model`. Raises EngineError, and OSError for the model."""
    if options.kind == "embedded":
        return await child_engine(model, deterministic=deterministic)
    if options.url is not None:
        return _engine(options, options.url)
    server = await VllmServer.start(_vllm(options, model, run_dir))
    return _engine(options, server.base_url, server)


def _engine(options: EngineOptions, url: str, server: VllmServer | None = None) -> VllmEngine:
    return VllmEngine(
        url,
        "policy",
        in_flight=options.in_flight,
        untie=options.cpu,
        server=server,
        max_kv_usage=options.max_kv_usage,
    )


def _vllm(options: EngineOptions, model: Path, run_dir: Path) -> VllmOptions:
    served = untied_copy(model, run_dir / "served") if options.cpu else model
    arguments = (*options.arguments, "--enable-sleep-mode") if options.colocated else options.arguments
    chosen = VllmOptions(
        served, arguments=arguments, environment=options.environment, log=run_dir / "vllm.log"
    )
    return chosen if options.python is None else replace(chosen, python=options.python)
