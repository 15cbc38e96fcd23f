"""`palestra proxy` and `palestra engine serve`: servers that a person starts, uses and stops."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from palestra.trajectories.store import Store

Command = Callable[..., Any]
Options = tuple[str | Path, ...]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def client_of(process: Any) -> OpenAI:
    exported = process.read_until(r"export OPENAI_BASE_URL=(\S+)\nexport OPENAI_API_KEY=(\S+)")
    return OpenAI(base_url=exported[1], api_key=exported[2], max_retries=0)


def converse(client: OpenAI) -> list[str]:
    """Two turns; what the model said."""
    messages: list[Any] = [{"role": "user", "content": "Say something."}]
    said = []
    for _ in range(2):
        reply = client.chat.completions.create(model="palestra", messages=messages).choices[0].message
        said.append(reply.content or "")
        messages += [reply.model_dump(exclude_none=True), {"role": "user", "content": "And more."}]
    return said


@pytest.mark.e2e
def test_a_session_by_hand_is_recorded_committed_and_shown(
    start: Command, palestra: Command, served: Options, model: Path, tmp_path: Path
) -> None:
    process = start("proxy", *served, "--run-dir", "by-hand", "--max-reply-tokens", "8")
    with client_of(process) as client:
        said = converse(client)
    ended = process.interrupt()
    assert ended.status == 0 and "recorded 2 calls: palestra show by-hand session-1" in ended.err
    assert "recording session-1 in by-hand" in ended.err

    with Store.open(tmp_path / "by-hand" / "store") as store:
        recorded = store.get("session-1")
    assert [c.delivered for c in recorded.calls] == [True, True]
    assert [recorded.nodes[c.node_id].message.content for c in recorded.calls] == said
    assert recorded.rollout.reward is None and recorded.rollout.failure is not None
    assert "session-1" in palestra("show", "by-hand").out
    shown = palestra("show", "by-hand", "session-1", "--model", model)
    assert shown.status == 0 and "Say something." in shown.out and "2 calls" in shown.out


@pytest.mark.e2e
def test_the_next_session_gets_the_next_name_and_sigterm_commits_too(
    start: Command, served: Options, tmp_path: Path
) -> None:
    for name in ("session-1", "session-2"):
        process = start("proxy", *served, "--run-dir", "by-hand")
        with client_of(process):
            ended = process.interrupt(signal.SIGTERM)
        assert ended.status == 0 and f"palestra show by-hand {name}" in ended.err
    with Store.open(tmp_path / "by-hand" / "store") as store:
        assert store.ids() == ["session-1", "session-2"]


@pytest.mark.e2e
def test_a_name_that_is_taken_is_refused_before_anything_is_recorded(
    start: Command, palestra: Command, served: Options
) -> None:
    process = start("proxy", *served, "--run-dir", "by-hand", "--session", "mine")
    with client_of(process):
        process.interrupt()
    ended = palestra("proxy", *served, "--run-dir", "by-hand", "--session", "mine")
    assert ended.status == 2 and "has a recording 'mine' already" in ended.err


@pytest.mark.e2e
def test_a_store_in_use_is_refused_before_anything_is_recorded(
    start: Command, palestra: Command, served: Options
) -> None:
    process = start("proxy", *served, "--run-dir", "by-hand")
    with client_of(process):
        for command in (("proxy",), ("rollout", "sql-tiny")):
            ended = palestra(*command, *served, "--run-dir", "by-hand")
            assert ended.status == 2 and re.search(r"open for writing by process \d+", ended.err)
        assert palestra("show", "by-hand").status == 0


def test_a_port_in_use_is_refused(palestra: Command, served: Options, model: Path, taken_port: int) -> None:
    for command in (("proxy", *served, "--run-dir", "x"), ("engine", "serve", model)):
        ended = palestra(*command, "--port", str(taken_port))
        assert ended.status == 2 and ended.err.count("\n") == 1
        assert f"cannot listen on 127.0.0.1:{taken_port}: another program listens there" in ended.err


def test_an_address_that_is_not_here_is_refused(palestra: Command, served: Options) -> None:
    ended = palestra("proxy", *served, "--run-dir", "x", "--host", "192.0.2.1")
    assert ended.status == 2 and "this machine has no such address" in ended.err


@pytest.mark.parametrize("port", ["70000", "-1", "http"])
def test_what_is_no_port_is_refused(palestra: Command, served: Options, port: str) -> None:
    ended = palestra("proxy", *served, "--run-dir", "x", "--port", port)
    assert ended.status == 2 and "--port" in ended.err


def test_the_engine_serves_token_ids(engine_url: str, model: Path) -> None:
    listed = httpx.get(f"{engine_url}/v1/models").json()
    assert [m["id"] for m in listed["data"]] == [model.name]
    body = {"prompt": [1, 2], "max_tokens": 3, "logprobs": 0, "return_token_ids": True}
    choice = httpx.post(f"{engine_url}/v1/completions", json=body).json()["choices"][0]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"]) == 3


def test_another_name_than_the_server_has_is_answered_with_its_names(
    palestra: Command, served: Options, model: Path
) -> None:
    ended = palestra("rollout", "sql-tiny", *served, "--engine-model", "other", "--run-dir", "x")
    assert ended.status == 2 and "'other'" in ended.err and model.name in ended.err


def test_an_engine_that_nobody_answers_for_is_a_mistake(
    palestra: Command, model: Path, unused_tcp_port: int
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    for command in (("rollout", "sql-tiny"), ("eval", "run", "sql-tiny"), ("proxy",)):
        ended = palestra(*command, "--model", model, "--run-dir", "x", "--engine-url", url)
        assert ended.status == 2 and f"{url}/v1" in ended.err and "Is the engine running?" in ended.err
        assert ended.err.count("\n") == 1


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost", "ftp://x/v1", "http://"])
def test_what_is_no_address_is_a_mistake(palestra: Command, model: Path, url: str) -> None:
    ended = palestra("rollout", "sql-tiny", "--model", model, "--run-dir", "x", "--engine-url", url)
    assert ended.status == 2 and "write it as http://127.0.0.1:8000/v1" in ended.err
