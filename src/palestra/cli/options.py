"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.cli.errors import UsageError

if TYPE_CHECKING:
    from palestra.harness_proxy.engines.base import Engine

ModelDir = Annotated[
    Path, typer.Option("--model", help="directory of a local model (tokenizer.json, config.json)")
]
RunDir = Annotated[
    Path, typer.Option("--run-dir", help="where rollouts are kept; the same run continues there")
]
EngineUrl = Annotated[
    str | None,
    typer.Option(
        "--engine-url", help="sample from this /v1/completions server (token ids) instead of in-process"
    ),
]


def checked_model(model: Path) -> Path:
    """`model` if it looks like a model directory. Raises UsageError."""
    if not (model / "tokenizer.json").is_file():
        raise UsageError(
            f"{model} has no tokenizer.json: give the directory of a local model, for example one that "
            "`palestra demo` wrote: runs/demo/warm"
        )
    return model


def make_engine(model: Path, url: str | None) -> Engine:
    """The embedded engine, or a remote one at `url`."""
    if url is not None:
        from palestra.harness_proxy.engines.remote import CompletionsEngine

        return CompletionsEngine(url, model.name)
    from palestra.rollouts.local import embedded_engine

    return embedded_engine(checked_model(model))
