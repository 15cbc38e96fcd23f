"""`palestra engine`: serve a model on this machine, by ourselves or with vLLM."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.cli.model_choice import start_engine
from palestra.cli.options import checked_model
from palestra.cli.serving import listening, until_stopped

if TYPE_CHECKING:
    from palestra.harness_proxy.engines.vllm_server import VllmOptions

app = typer.Typer(
    help="Serve a model as a token-in, token-out endpoint.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="directory of a local Qwen3 model")],
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="port to listen on, 0 takes a free one")
    ] = 8000,
) -> None:
    """Serve a local Qwen3 model at /v1/completions.

    Takes and gives token ids with log-probabilities, as vLLM does. Ctrl-C stops it.

    \b
    Examples:
      palestra engine serve runs/demo/warm --port 8000
      palestra eval run sql-tiny --model runs/demo/warm --run-dir runs/x --engine-url http://127.0.0.1:8000
    """
    from palestra.rollouts.loop import run

    run(_serve(model, host, port))


async def _serve(model: Path, host: str, port: int) -> None:
    from palestra.harness_proxy.engines.service import completions_app
    from palestra.harness_proxy.listener import Listener

    engine = await start_engine(model)
    try:
        with listening(host, port):
            listener = await Listener.open(completions_app(engine), host, port)
        print(f"serving {model} at {listener.url}/v1/completions, stop with Ctrl-C", flush=True)
        await until_stopped()
        await listener.aclose()
    finally:
        await engine.aclose()


@app.command(context_settings={"allow_extra_args": True, "allow_interspersed_args": False})
def vllm(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="directory of a model, or its name on the hub; then -- and more"
        ),
    ],
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="interpreter that has vLLM, by default PALESTRA_VLLM_PYTHON or this one"
        ),
    ] = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="port to listen on, 0 takes a free one")
    ] = 8000,
    name: Annotated[str, typer.Option(metavar="NAME", help="what clients call the model")] = "policy",
    cpu: Annotated[
        bool,
        typer.Option("--cpu", help="vLLM for the CPU: serve a copy of the model that a reload changes whole"),
    ] = False,
    log: Annotated[Path, typer.Option(metavar="FILE", help="where vLLM's own output goes")] = Path(
        "vllm.log"
    ),
) -> None:
    """Start vLLM as the recorder and the trainer need it, and start it again when it dies.

    Options come before MODEL; what follows -- goes to `vllm serve`. Ctrl-C stops it.

    \b
    Examples:
      palestra engine vllm --port 8000 Qwen/Qwen3-0.6B -- --max-model-len 8192
      palestra rollout sql-tiny --model m --run-dir runs/x --engine-url http://127.0.0.1:8000 --engine-model policy
    """
    from palestra.harness_proxy.engines.vllm_server import VllmOptions
    from palestra.rollouts.loop import run

    with tempfile.TemporaryDirectory(prefix="palestra-vllm-") as scratch:
        options = VllmOptions(
            _served(model, Path(scratch), cpu),
            name,
            host=host,
            port=port,
            arguments=_further(context.args),
            log=log,
        )
        run(_supervise(options if python is None else replace(options, python=python)))


def _further(arguments: list[str]) -> list[str]:
    """What follows MODEL, without the -- that sets it apart."""
    return arguments[1:] if arguments[:1] == ["--"] else arguments


def _served(model: str, scratch: Path, cpu: bool) -> Path:
    """What vLLM reads: the model, or a copy without shared tensors."""
    from palestra.harness_proxy.engines.weights import untied_copy

    found = checked_model(Path(model))
    return untied_copy(found, scratch / "served") if cpu else found


async def _supervise(options: VllmOptions) -> None:
    from palestra.harness_proxy.engines.vllm_server import VllmServer

    print(f"starting vLLM, see {options.log}", flush=True)
    server = await VllmServer.start(options)
    stopped = asyncio.create_task(until_stopped())
    try:
        print(f"serving {options.name} at {server.base_url}, stop with Ctrl-C", flush=True)
        while not (await asyncio.wait([stopped], timeout=1.0))[0]:
            if not server.running:
                print("vLLM ended, starting it again with the weights of the model", flush=True)
                await server.restart()
    finally:
        stopped.cancel()
        await server.aclose()
