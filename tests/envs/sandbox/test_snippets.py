"""Python snippets in a warm interpreter."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from palestra.envs.sandbox.machine import Machine
from palestra.envs.sandbox.snippets import SnippetRunner
from sandboxes import SMALL, backend, base_image


@pytest.fixture(
    scope="module", params=["namespace", pytest.param("docker", marks=pytest.mark.xdist_group("docker"))]
)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Machine]:
    with backend(request.param) as made, made.create(base_image(), SMALL) as sandbox:
        assert isinstance(sandbox, Machine)
        yield sandbox


@pytest.fixture(scope="module")
def python(sandbox: Machine) -> Iterator[SnippetRunner]:
    with SnippetRunner(sandbox, imports=["json"]) as runner:
        yield runner


def test_output_and_status_come_back(python: SnippetRunner) -> None:
    done = python.run("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


def test_what_was_imported_is_there(python: SnippetRunner) -> None:
    assert python.run("print(json.dumps([1]), __name__)").stdout == b"[1] __main__\n"


def test_snippets_share_nothing(python: SnippetRunner) -> None:
    python.run("x = 1; json.dumps = None")
    done = python.run("print(json.dumps(1)); x")
    assert done.stdout == b"1\n" and b"NameError" in done.stderr and done.exit_code == 1


def test_a_traceback_shows_the_snippet_only(python: SnippetRunner) -> None:
    lines = python.run("1 / 0").stderr.decode().splitlines()
    assert lines[0].startswith("Traceback") and lines[1].strip().startswith('File "<snippet>", line 1')
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_a_signal_is_a_negative_status(python: SnippetRunner) -> None:
    assert python.run("import os; os.kill(os.getpid(), 11)").exit_code == -11


def test_a_timeout_ends_it_and_the_next_one_runs(python: SnippetRunner) -> None:
    done = python.run("print('begun', flush=True)\nwhile True: pass", timeout_s=0.5)
    assert done.timed_out and done.breach == "time" and done.stdout == b"begun\n" and done.exit_code == -9
    assert python.run("print('next')").stdout == b"next\n"


def test_snippets_run_at_the_same_time(python: SnippetRunner) -> None:
    done: list[bytes] = []
    wait = "import os, time\nopen('/tmp/{0}', 'w')\nwhile not os.path.exists('/tmp/{1}'): time.sleep(.01)\nprint('{0}')"
    pairs = [("one", "two"), ("two", "one")]
    threads = [
        threading.Thread(target=lambda p=p: done.append(python.run(wait.format(*p)).stdout)) for p in pairs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [b"one\n", b"two\n"]


def test_a_flood_is_ended(python: SnippetRunner) -> None:
    done = python.run("while True: print('x' * 1000)", timeout_s=15)
    assert done.breach == "output" and len(done.stdout) == SMALL.output_bytes


def test_it_starts_again_after_a_reset(sandbox: Machine, python: SnippetRunner) -> None:
    python.run("open('/work/x', 'w').write('1')")
    sandbox.reset()  # type: ignore[attr-defined]
    assert python.run("import os; print(os.listdir('/work'))").stdout == b"[]\n"


def test_closing_it_leaves_other_processes_alone(sandbox: Machine) -> None:
    sandbox.reset()  # type: ignore[attr-defined]
    with SnippetRunner(sandbox) as runner:
        assert runner.run("print(1)").stdout == b"1\n"
        sandbox.exec("sleep 77 > /dev/null 2>&1 &")
    assert sandbox.exec("pgrep -fc 'sleep 77'").exit_code == 0
    assert sandbox.exec("pgrep -c python3 || true").stdout == b"0\n"
