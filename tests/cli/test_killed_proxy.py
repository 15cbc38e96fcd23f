"""`palestra proxy`, killed or out of disk while harnesses are talking to it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Trajectory
from palestra.trajectories.store import Store

Command = Callable[..., Any]
Options = tuple[str | Path, ...]

CLIENTS = 6
TALK = 40
"""Calls that are answered before the proxy is killed."""


class Crowd:
    """Clients that talk at once until their connection breaks."""

    def __init__(self, url: str, key: str, enough: int) -> None:
        self.answered: dict[int, str] = {}
        self.broken: list[Exception] = []
        self.enough = threading.Event()
        self._url, self._key, self._wanted = url, key, enough

    def talk(self, who: int) -> None:
        """A conversation of turns, in this thread."""
        messages: list[Any] = [{"role": "user", "content": f"I am {who}."}]
        with openai.OpenAI(base_url=self._url, api_key=self._key, max_retries=0) as client:
            while not self.broken or len(self.broken) < CLIENTS:
                try:
                    raw = client.chat.completions.with_raw_response.create(model="m", messages=messages[-3:])
                except openai.OpenAIError as error:
                    self.broken.append(error)
                    return
                reply = raw.parse().choices[0].message
                self.answered[int(raw.headers["x-palestra-call"])] = reply.content or ""
                messages += [reply.model_dump(exclude_none=True), {"role": "user", "content": "And?"}]
                if len(self.answered) >= self._wanted:
                    self.enough.set()


@pytest.mark.e2e
def test_a_killed_proxy_loses_no_call_that_it_answered(
    start: Command, palestra: Command, served: Options, model: Path, tmp_path: Path
) -> None:
    process = start("proxy", *served, "--run-dir", "by-hand", "--max-reply-tokens", "8")
    exported = process.read_until(r"export OPENAI_BASE_URL=(\S+)\nexport OPENAI_API_KEY=(\S+)")
    crowd = Crowd(exported[1], exported[2], TALK)
    with ThreadPoolExecutor(CLIENTS) as threads:
        talking = [threads.submit(crowd.talk, who) for who in range(CLIENTS)]
        assert crowd.enough.wait(60)
        process.kill()
        for talk in talking:
            talk.result(timeout=60)
    assert {type(e) for e in crowd.broken} == {openai.APIConnectionError}, "not what SDKs try again"

    shown = palestra("show", "by-hand", "session-1", "--model", model)
    assert shown.status == 0 and "I am 0." in shown.out
    with Store.open(tmp_path / "by-hand" / "store", write=True) as store:
        assert store.ids() == ["session-1"]
        _check_lost(store.get("session-1"), crowd.answered)
    assert not list((tmp_path / "by-hand" / "store" / "journal").iterdir())


def _check_lost(found: Trajectory, answered: dict[int, str]) -> None:
    """Every call that was answered is there as it was answered, and nothing is scored."""
    failure = found.rollout.failure
    assert failure is not None and failure.boundary == "proxy" and failure.retryable
    assert found.rollout.score is None and found.rollout.reward is None
    said = {c.seq: found.nodes[c.node_id].message.content for c in found.calls}
    assert answered.items() <= said.items()
    assert len(said) == len(found.calls) <= len(answered) + CLIENTS, "at most one unanswered call per client"
    graph = TokenGraph(found.nodes)
    assert sorted(c.node_id for c in found.calls) == [n.node_id for n in graph.nodes if n.sampled.any()]


@pytest.mark.e2e
def test_the_next_session_after_a_kill_has_the_next_name(
    start: Command, served: Options, tmp_path: Path
) -> None:
    for _ in range(2):
        process = start("proxy", *served, "--run-dir", "by-hand", "--max-reply-tokens", "4")
        exported = process.read_until(r"export OPENAI_BASE_URL=(\S+)\nexport OPENAI_API_KEY=(\S+)")
        with openai.OpenAI(base_url=exported[1], api_key=exported[2]) as client:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}])
        process.kill()
    with Store.open(tmp_path / "by-hand" / "store", write=True) as store:
        assert store.ids() == ["session-1", "session-2"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB at tmp_path/small."""
    libc = ctypes.CDLL(None, use_errno=True)
    path = tmp_path / "small"
    path.mkdir()
    if os.geteuid() != 0 or libc.mount(b"none", os.fsencode(path), b"tmpfs", 0, b"size=1m") != 0:
        pytest.skip("mounting a small tmpfs needs root and CAP_SYS_ADMIN")
    yield path
    assert libc.umount2(os.fsencode(path), 2) == 0, os.strerror(ctypes.get_errno())


@pytest.mark.e2e
def test_a_disk_that_is_full_at_the_end_keeps_the_recording(
    start: Command, served: Options, small_disk: Path
) -> None:
    process = start("proxy", *served, "--run-dir", small_disk, "--max-reply-tokens", "4")
    exported = process.read_until(r"export OPENAI_BASE_URL=(\S+)\nexport OPENAI_API_KEY=(\S+)")
    with openai.OpenAI(base_url=exported[1], api_key=exported[2], max_retries=0) as client:
        hi: Any = {"role": "user", "content": "Hi"}
        client.chat.completions.create(model="m", messages=[hi])
        _fill(small_disk / "ballast")
        with pytest.raises(openai.InternalServerError, match="no space to write") as refused:
            client.chat.completions.create(model="m", messages=[hi, hi | {"content": "x" * 1500}])
    assert refused.value.status_code == 503 and refused.value.response.headers["retry-after"]
    ended = process.interrupt()
    assert ended.status == 2 and "no space to write" in ended.err and "journal" in ended.err
    (small_disk / "ballast").unlink()
    with Store.open(small_disk / "store", write=True) as store:
        [recovered] = store
    assert recovered.rollout.rollout_id == "session-1" and len(recovered.calls) == 1
    assert recovered.rollout.failure is not None and recovered.rollout.reward is None


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, pytest.raises(OSError):
        while file.write(bytes(512)):
            pass
