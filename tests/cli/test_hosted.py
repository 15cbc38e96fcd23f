"""`--upstream`: a hosted chat API answers, by hand, in rollouts and through a program of somebody else's."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from palestra.trajectories.store import Store

Command = Callable[..., Any]
Options = tuple[str, ...]
MakeTask = Callable[..., dict[str, Any]]


def answer(body: dict[str, Any], sql: str) -> dict[str, Any]:
    """Looks and then submits `sql` where that can be done; else it says how many messages it was sent."""
    if "submit" not in [tool["function"]["name"] for tool in body.get("tools", ())]:
        return {"role": "assistant", "content": f"{len(body['messages'])} messages"}
    looked = body["messages"][-1]["role"] == "tool"
    name, arguments = ("submit", {"sql": sql}) if looked else ("list_tables", {})
    call = {"id": "a", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.fixture
def hosted(monkeypatch: pytest.MonkeyPatch, make_task: MakeTask) -> Iterator[Options]:
    """Options that name a hosted model and where it is."""
    gold = make_task("a")["data"]["gold_sql"]

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert self.headers["authorization"] == "Bearer secret" and body["model"] == "big"
            choice = {"message": answer(body, gold), "finish_reason": "stop"}
            reply = json.dumps({"choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.setenv("HOSTED_KEY", "secret")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield "--upstream", url, "--upstream-key-env", "HOSTED_KEY", "--model", "big"
        server.shutdown()


@pytest.mark.e2e
def test_a_session_by_hand_is_recorded_as_text_and_exported(
    start: Command, palestra: Command, hosted: Options, tmp_path: Path
) -> None:
    process = start("proxy", *hosted, "--run-dir", "hosted")
    exported = process.read_until(r"export OPENAI_BASE_URL=(\S+)\nexport OPENAI_API_KEY=(\S+)")
    messages: list[Any] = [{"role": "user", "content": "Say something."}]
    with OpenAI(base_url=exported[1], api_key=exported[2], max_retries=0) as client:
        for said in ("1 messages", "3 messages"):
            reply = client.chat.completions.create(model="m", messages=messages).choices[0].message
            assert reply.content == said
            messages += [reply.model_dump(exclude_none=True), {"role": "user", "content": "And more."}]
    assert process.interrupt().status == 0
    shown = palestra("show", "hosted", "session-1")
    assert shown.status == 0 and "3 messages" in shown.out
    refused = palestra("export", "hosted", "--format", "trl", "-o", "grpo.jsonl", "--mode", "eval")
    assert refused.status == 0 and "left out: 1 with capture level text" in refused.out
    ended = palestra("export", "hosted", "--format", "trl-sft", "-o", "sft.jsonl", "--unscored")
    assert ended.status == 0
    (row,) = map(json.loads, (tmp_path / "sft.jsonl").read_text().splitlines())
    assert [m["content"] for m in row["completion"]] == ["1 messages", "And more.", "3 messages"]


@pytest.fixture
def tasks(make_task: MakeTask, tmp_path: Path) -> str:
    """One question, which the model can answer."""
    (tmp_path / "tasks.jsonl").write_text(json.dumps(make_task("a", budget={"turns": 4})))
    return "tasks.jsonl"


def test_it_is_evaluated_on_a_split(palestra: Command, hosted: Options, tasks: str, tmp_path: Path) -> None:
    ended = palestra("eval", "run", tasks, *hosted, "--run-dir", "r", "--samples", "2")
    assert ended.status == 0 and "100.0 %" in ended.out, ended
    with Store.open(tmp_path / "r" / "store") as store:
        played = [store.get(name) for name in store.ids()]
    assert [(t.rollout.reward, t.rollout.capture_level) for t in played] == [(1.0, "text")] * 2
    assert all(len(t.calls) == 2 and len(t.steps) == 2 for t in played)
    assert not any(len(node.token_ids) for t in played for node in t.nodes)
    again = palestra("eval", "run", tasks, *hosted, "--run-dir", "r", "--samples", "2")
    assert "2 rollouts are there" in again.out
    other = palestra("eval", "run", tasks, *hosted[:-1], "small", "--run-dir", "r")
    assert other.status == 2 and "'big at http" in other.err and "now 'small at http" in other.err


def test_it_cannot_be_trained(palestra: Command, hosted: Options, tasks: str) -> None:
    ended = palestra("rollout", tasks, *hosted, "--run-dir", "r", "--mode", "train")
    assert ended.status == 2 and "train mode needs an engine that gives tokens" in ended.err


def test_a_second_place_to_sample_from_is_refused(palestra: Command, hosted: Options, tasks: str) -> None:
    ended = palestra("eval", "run", tasks, *hosted, "--run-dir", "r", "--engine-url", "http://127.0.0.1:9")
    assert ended.status == 2 and "choose one" in ended.err


def test_a_harness_runs_on_it(palestra: Command, hosted: Options) -> None:
    ended = palestra(
        "harness", "run", "openai-sdk", "Say something.", *hosted, "--no-isolation", "--run-dir", "r"
    )
    assert ended.status == 0 and "1 messages" in ended.out, ended
    assert "recorded 1 calls, 0 sampled tokens" in ended.err and "--model" not in ended.err
