"""`palestra search`: corpora as services."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palestra.cli.errors import UsageError
from palestra.cli.serving import listening

if TYPE_CHECKING:
    from palestra.envs.search.retriever import Retriever

app = typer.Typer(help="Search corpora.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _search() -> None:
    """Search corpora."""


@app.command()
def serve(
    corpus: Annotated[str, typer.Argument(metavar="CORPUS", help="a file or folder of passages")],
    retriever: Annotated[
        str, typer.Option("--retriever", metavar="KIND", help="bm25, tantivy, dense or hybrid")
    ] = "bm25",
    format: Annotated[
        str, typer.Option("--format", metavar="NAME", help="of the corpus; else told by its first record")
    ] = "",
    model: Annotated[
        str, typer.Option("--model", metavar="DIR", help="dense, hybrid: a local sentence transformer")
    ] = "",
    topk: Annotated[int, typer.Option("--topk", min=1, metavar="N", help="where a client names none")] = 3,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="where to listen")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, metavar="N", help="0 takes a free one")
    ] = 8000,
) -> None:
    """Serve a corpus at /retrieve, as Search-R1's clients ask.

    \b
    Examples:
      palestra search serve wiki-18.jsonl --retriever tantivy
      palestra search serve notes/ --retriever hybrid --model models/all-MiniLM-L6-v2
      curl -d '{"queries": ["Who wrote Faust?"], "topk": 3}' http://127.0.0.1:8000/retrieve
    """
    from palestra.envs.search.retriever import open_retriever
    from palestra.tasks.search.corpus import open_source

    spec = {"path": corpus} | ({"format": format} if format else {})
    opened = open_retriever(open_source(spec), _spec(retriever, model))
    asyncio.run(_serve(opened, corpus, host, port, topk))


def _spec(kind: str, model: str) -> dict[str, Any]:
    """The retriever as tasks name it. Raises UsageError for a model where none is used, and the reverse."""
    if bool(model) != (kind in ("dense", "hybrid")):
        raise UsageError("--model is for --retriever dense and hybrid, which need one")
    dense = {"kind": "dense", "model": model}
    if kind == "hybrid":
        return {"kind": "hybrid", "of": [{"kind": "bm25"}, dense]}
    return dense if kind == "dense" else {"kind": kind}


async def _serve(retriever: Retriever, corpus: str, host: str, port: int, topk: int) -> None:
    from palestra.envs.search.service import retrieval_server

    with listening(host, port):
        bound = socket.create_server((host, port))
    with bound:
        url = f"http://{host}:{bound.getsockname()[1]}/retrieve"
        print(f"{corpus}: {url}", flush=True)
        await retrieval_server(retriever, host, port, topk).serve(sockets=[bound])
