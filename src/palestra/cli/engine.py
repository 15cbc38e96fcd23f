"""`palestra engine`: serve a small model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palestra.cli.options import start_engine
from palestra.cli.serving import listening, until_stopped

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

    engine = await start_engine(model, None, None)
    try:
        with listening(host, port):
            listener = await Listener.open(completions_app(engine), host, port)
        print(f"serving {model} at {listener.url}/v1/completions, stop with Ctrl-C", flush=True)
        await until_stopped()
        await listener.aclose()
    finally:
        await engine.aclose()


@app.callback()
def _group() -> None:
    """Keeps `serve` a subcommand although it is the only one."""
