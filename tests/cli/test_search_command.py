"""`palestra search serve`: a corpus that a person serves, asks and stops."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

Command = Callable[..., Any]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"id": "1", "contents": '"Dorn"\nDorn is a town on the Elm.'}) + "\n")
    return path


@pytest.mark.e2e
def test_a_corpus_is_served_until_interrupted(start: Command, corpus: Path) -> None:
    process = start("search", "serve", corpus, "--port", "0", "--topk", "1")
    url = process.read_until(r"corpus\.jsonl: (http://\S+/retrieve)")[1]
    answer = httpx.post(url, json={"queries": ["the Elm"], "return_scores": True}).json()
    assert answer["result"][0][0]["document"]["id"] == "1"
    assert process.interrupt().status in (0, 130)


def test_what_cannot_be_served_is_refused(palestra: Command, corpus: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ((tmp_path / "no.jsonl",), "there is no corpus"),
        ((corpus, "--retriever", "oracle"), "there is no retriever 'oracle'"),
        ((corpus, "--retriever", "dense"), "--model is for --retriever dense and hybrid"),
        ((corpus, "--model", tmp_path), "--model is for --retriever dense and hybrid"),
        ((corpus, "--format", "xml"), "there is no corpus format 'xml'"),
    ):
        ended = palestra("search", "serve", *arguments)
        assert ended.status == 2 and message in ended.err and ended.err.count("\n") == 1


def test_a_port_in_use_is_refused(palestra: Command, corpus: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = palestra("search", "serve", corpus, "--port", str(server.getsockname()[1]))
    assert ended.status == 2 and "another program listens there" in ended.err
