"""`palestra engine`: serve a small model on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from palestra.cli.options import checked_model

app = typer.Typer(
    help="Serve a model as a token-in, token-out endpoint.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def serve(
    model: Annotated[Path, typer.Argument(help="directory of a local Qwen3 model")],
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on")] = 8000,
) -> None:
    """Serve a local Qwen3 model at /v1/completions with token ids and log-probabilities.

    Example: palestra engine serve runs/demo/warm --port 8000
             palestra eval run sql-tiny --model runs/demo/warm --engine-url http://127.0.0.1:8000 --run-dir runs/x
    """
    from palestra.harness_proxy.engines.service import serve as serve_engine
    from palestra.rollouts import loop
    from palestra.rollouts.local import embedded_engine

    checked = checked_model(model)
    print(f"serving {checked} at http://{host}:{port}/v1/completions, stop with Ctrl-C")
    loop.run(serve_engine(embedded_engine(checked), host, port))


@app.callback()
def _group() -> None:
    """Keeps `serve` a subcommand although it is the only one."""
