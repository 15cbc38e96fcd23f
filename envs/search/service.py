"""POST /retrieve for any retriever, as Search-R1's clients speak it (PeterGriffinJin/Search-R1, retrieval_request.py).

    request     {"queries": ["...", ...], "topk": 3, "return_scores": true}; topk may be absent or null
    answer      {"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}, one list per query
    without return_scores the inner items are the documents themselves

What is malformed or too large is answered 400, 413 or 422 with {"detail": "..."}.
"""

from __future__ import annotations

import pydantic
import uvicorn
from pydantic import BaseModel, ConfigDict, Field
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from palestra.envs.errors import RetrieverError
from palestra.envs.search.retriever import MAX_K, Hit, Retriever
from palestra.tasks.search.formats import contents_of_passage

MAX_BODY_BYTES = 4 << 20
MAX_QUERIES = 1024
MAX_QUERY_CHARS = 10_000


class _Query(BaseModel):
    model_config = ConfigDict(extra="ignore")

    queries: list[str] = Field(max_length=MAX_QUERIES)
    topk: int | None = Field(default=None, ge=1, le=MAX_K)
    return_scores: bool = False


def retrieval_app(retriever: Retriever, topk: int = 3) -> Starlette:
    """The service; `topk` where a request names none."""

    async def retrieve(request: Request) -> Response:
        body = await _body(request)
        if body is None:
            return _refused(413, f"a request has at most {MAX_BODY_BYTES} bytes")
        try:
            asked = _Query.model_validate_json(body)
        except pydantic.ValidationError as error:
            return _refused(422, "; ".join(f"{_place(e['loc'])}: {e['msg']}" for e in error.errors()))
        if any(len(query) > MAX_QUERY_CHARS for query in asked.queries):
            return _refused(413, f"a query has at most {MAX_QUERY_CHARS} characters")
        try:
            found = await run_in_threadpool(_search, retriever, asked, topk)
        except RetrieverError as error:
            return _refused(502, str(error))
        return JSONResponse({"result": found})

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    routes = [Route("/retrieve", retrieve, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes)


def retrieval_server(retriever: Retriever, host: str, port: int, topk: int = 3) -> uvicorn.Server:
    """A server for `retrieval_app`; run its `serve`."""
    app = retrieval_app(retriever, topk)
    return uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning", lifespan="off"))


def _search(retriever: Retriever, asked: _Query, topk: int) -> list[list[object]]:
    return [
        [_item(hit, asked.return_scores) for hit in retriever.search(query, asked.topk or topk)]
        for query in asked.queries
    ]


def _item(hit: Hit, scored: bool) -> object:
    document = {"id": hit.passage.id, "contents": contents_of_passage(hit.passage)}
    return {"document": document, "score": hit.score} if scored else document


async def _body(request: Request) -> bytes | None:
    """The body; None where it is too large."""
    held = bytearray()
    async for chunk in request.stream():
        held += chunk
        if len(held) > MAX_BODY_BYTES:
            return None
    return bytes(held)


def _place(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location)) or "body"


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"detail": why}, status_code=status)
