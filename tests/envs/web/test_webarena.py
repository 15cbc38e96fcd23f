"""WebArena's tasks on a stand-in for its sites: a server of its own, reached through the gateway."""

from __future__ import annotations

import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from palestra.envs.errors import EnvSetupError
from palestra.envs.web.env import WebEnv
from palestra.rewards.score import GraderError
from palestra.rewards.webarena import string_match, url_match
from palestra.tasks.errors import TaskFileError, TaskParameterError
from palestra.tasks.registry import load_tasks
from palestra.tasks.task import Task

Start = Callable[[Task], WebEnv]


@pytest.fixture
def shop() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(
                f"<h1>{self.path}</h1><p id=price>12 dollars</p><a href='/cart?id=7'>cart</a>".encode()
            )

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def record(**eval_: Any) -> dict[str, Any]:
    wanted = {"eval_types": [], "reference_answers": None, "reference_url": "", "program_html": []} | eval_
    return {"sites": ["shopping"], "task_id": 3, "start_url": "__SHOPPING__", "intent": "What is the price?",
            "eval": wanted}  # fmt: skip


def task_of(tmp_path: Path, shop: str, *records: Any) -> Task:
    (tmp_path / "test.raw.json").write_text(json.dumps(records))
    found: Task = load_tasks(f"webarena?path={tmp_path / 'test.raw.json'}&shopping={shop}")[0]
    return found


def submit(env: WebEnv, answer: str) -> float:
    return env.step(json.dumps({"name": "submit", "arguments": {"answer": answer}}))[1]


@pytest.mark.parametrize(("answer", "reward"), [("It is 12 dollars.", 1.0), ("13 dollars", 0.0), ("", 0.0)])
def test_an_answer(start: Start, tmp_path: Path, shop: str, answer: str, reward: float) -> None:
    wanted = record(eval_types=["string_match"], reference_answers={"must_include": ["12 dollars"]})
    assert submit(start(task_of(tmp_path, shop, wanted)), answer) == reward


@pytest.mark.parametrize("there", [True, False])
def test_an_address_and_a_page(start: Start, tmp_path: Path, shop: str, there: bool) -> None:
    content = {"url": "__SHOPPING__/x", "locator": "document.querySelector('#price').outerText",
               "required_contents": {"must_include": ["12 |OR| 13"]}}  # fmt: skip
    wanted = record(eval_types=["url_match", "program_html"], reference_url="__SHOPPING__/cart?id=7",
                    program_html=[content])  # fmt: skip
    env = start(task_of(tmp_path, shop, wanted))
    if there:
        env.step('click "link \\"cart\\""')
    assert submit(env, "") == float(there)
    assert env.score().parts == {"url_match": float(there), "program_html": 1.0}


def test_what_cannot_be_checked_is_no_zero(start: Start, tmp_path: Path, shop: str) -> None:
    content = {"url": "func:shopping_get_latest_order_url()", "locator": "", "required_contents": {}}
    env = start(task_of(tmp_path, shop, record(eval_types=["program_html"], program_html=[content])))
    with pytest.raises(GraderError, match="needs a function of WebArena's code"):
        submit(env, "")


def test_a_server_that_is_down_is_shown(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    env = start(task_of(tmp_path, f"http://{address}", record(eval_types=[])))
    assert f"http://{address}: " in env.view.text(500)


def test_a_start_page_that_cannot_be_opened_is_no_task(start: Start, tmp_path: Path) -> None:
    with pytest.raises(EnvSetupError, match="cannot be opened"):
        start(task_of(tmp_path, "http://127.0.0.1:9", record(eval_types=[])))


def test_strings() -> None:
    assert string_match(' "Yes" ', {"exact_match": "yes"}) and not string_match(
        "yes, 1", {"exact_match": "yes"}
    )
    assert string_match("item 2 of 3", {"must_include": ["2"]}) and not string_match(
        "21", {"must_include": ["2"]}
    )
    assert string_match("N/A", {"fuzzy_match": "N/A"}) and not string_match("5", {"fuzzy_match": "N/A"})
    assert string_match("about 5 km", {"fuzzy_match": ["5 km"]})
    with pytest.raises(GraderError, match="needs a language model"):
        string_match("five", {"fuzzy_match": ["5"]})


def test_addresses() -> None:
    gold = "http://s.test/a?x=1 |OR| http://s.test/b"
    assert url_match("http://s.test/a/?x=1&y=2", gold) and not url_match("http://s.test/a?x=2", gold)
    with pytest.raises(GraderError, match="GOLD in PRED"):
        url_match("http://s.test", "http://s.test", "EXACT")


def test_bad_files_and_parameters(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="item 0: KeyError: 'intent'"):
        task_of(tmp_path, "http://s.test", {k: v for k, v in record().items() if k != "intent"})
    with pytest.raises(TaskParameterError, match="has no site 'shop'"):
        load_tasks("webarena?path=x.json&shop=http://s.test")
    (tmp_path / "a.json").write_text(json.dumps([record()]))
    assert len(load_tasks(f"webarena?path={tmp_path / 'a.json'}")) == 0
