"""/retrieve over a socket: as Search-R1's client asks, as our own does, and as nobody should."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from palestra.envs.errors import RetrieverError
from palestra.envs.search.env import SearchEnv
from palestra.envs.search.remote import Remote
from palestra.envs.search.retriever import Hit, open_retriever
from palestra.envs.search.service import MAX_BODY_BYTES, retrieval_server
from palestra.tasks.search.corpus import open_source
from search_world import call, corpus_file, search_task


class _Broken:
    def search(self, _query: str, _k: int) -> list[Hit]:
        raise RetrieverError("the disk is gone")


def _serving(retriever: Any) -> Iterator[str]:
    server = retrieval_server(retriever, "127.0.0.1", 0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started and thread.is_alive():
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    source = open_source({"path": str(corpus_file(tmp_path))})
    yield from _serving(open_retriever(source, {"kind": "bm25"}))


def test_the_shape_that_search_r1_reads(url: str) -> None:
    """generation.py reads result[i][j]["document"]["contents"], whose first line is the title."""
    body = {"queries": ["Ann Lee", "zzz", "the river Elm"], "topk": 2, "return_scores": True}
    results = httpx.post(f"{url}/retrieve", json=body).json()["result"]
    assert [len(r) for r in results] == [1, 0, 2]
    assert results[0][0]["document"] == {
        "id": "ann",
        "contents": '"Ann Lee"\nAnn Lee wrote The Quiet Sea. She was born in Dorn.',
    }
    assert results[2][0]["score"] >= results[2][1]["score"] > 0


def test_without_scores_the_items_are_documents(url: str) -> None:
    for topk in ({}, {"topk": None}):
        results = httpx.post(f"{url}/retrieve", json={"queries": ["Ann"], **topk}).json()["result"]
        assert [d["id"] for d in results[0]] == ["ann"]


def test_an_environment_plays_alike_over_the_service(url: str, tmp_path: Path) -> None:
    here = search_task(corpus_file(tmp_path))
    spec = {"corpus": {"url": url}, "retriever": {"kind": "remote", "url": f"{url}/retrieve"}}
    there = here.model_copy(update={"data": here.data | spec})
    actions = [call("search", query="mayor of Dorn"), call("open", id="dorn"), call("answer", answer="Bo")]
    played = []
    for task in (here, there):
        env = SearchEnv()
        env.reset(options={"task": task})
        played.append([env.step(action)[:4] for action in actions])
    assert played[0] == played[1] and played[0][-1][1] == 1.0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b"[]", 422),
        (b'{"queries": "Ann"}', 422),
        (b'{"queries": [1]}', 422),
        (b'{"queries": ["Ann"], "topk": 0}', 422),
        (b'{"queries": ["Ann"], "topk": 1000000}', 422),
        (json.dumps({"queries": ["x"] * 1025}).encode(), 422),
        (json.dumps({"queries": ["x" * 10_001]}).encode(), 413),
        (b" " * (MAX_BODY_BYTES + 1), 413),
    ],
)
def test_what_is_malformed_or_too_large_is_refused(url: str, body: bytes, status: int) -> None:
    answer = httpx.post(f"{url}/retrieve", content=body)
    assert answer.status_code == status and answer.json()["detail"]
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}


def test_a_server_that_fails_is_no_measurement() -> None:
    for url in _serving(_Broken()):
        assert httpx.post(f"{url}/retrieve", json={"queries": ["x"]}).status_code == 502
        with pytest.raises(RetrieverError, match="502"):
            Remote(url).search("x", 1)


def test_nobody_there(unused_tcp_port: int) -> None:
    with pytest.raises(RetrieverError, match="did not answer like a retrieval server"):
        Remote(f"http://127.0.0.1:{unused_tcp_port}").search("x", 1)
