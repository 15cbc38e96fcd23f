"""The command line in this process or in one of its own, a model with random weights, and a server for it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from palestra.cli import main
from palestra.tasks.sql.tiny import tables
from palestra.training.tiny import byte_tokenizer, save_model_dir

COMMAND = (sys.executable, "-c", "from palestra.cli import main; main()")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str


class Started:
    """The command in a process of its own."""

    def __init__(self, arguments: tuple[str | Path, ...], cwd: Path, options: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=os.environ | {"COLUMNS": "140"},
            start_new_session=True,
            **options,
        )

    def read_until(self, pattern: str) -> re.Match[str]:
        """The first match in what it prints."""
        assert self._process.stdout is not None and self._process.stderr is not None
        read = ""
        for line in self._process.stdout:
            read += line
            if match := re.search(pattern, read):
                return match
        raise AssertionError(f"no {pattern!r} in {read!r}; {self._process.stderr.read()}")

    def interrupt(self, number: int = signal.SIGINT) -> Ended:
        """Ctrl-C, and how it ended."""
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> Ended:
        out, err = self._process.communicate(timeout=120)
        return Ended(self._process.returncode, out, err)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """Commands started here heed Ctrl-C, also where a shell runs the tests in the background and they ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def palestra(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Ended]:
    """`palestra("rollout", "sql-tiny", ...)` in this process, with tmp_path as the working directory."""
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["palestra", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capfd.readouterr()
        return Ended(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """`start("proxy", ...)`: the command in a process of its own, which is ended with the test."""
    with ExitStack() as stack:

        def run(*arguments: str | Path, cwd: Path = tmp_path, **options: Any) -> Started:
            process = Started(arguments, cwd, options)
            stack.callback(process.kill)
            return process

        yield run


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`make_model(seed)`: the directory of a random Qwen3 of twenty thousand weights that spells bytes."""

    def make(seed: int) -> Path:
        directory = tmp_path_factory.mktemp("models") / f"tiny-{seed}"
        sizes = {"hidden": 32, "layers": 2, "heads": 2, "context_tokens": 2048}
        save_model_dir(directory, byte_tokenizer(), seed=seed, **sizes)
        return directory

    return make


@pytest.fixture(scope="session")
def model(make_model: Callable[..., Path]) -> Path:
    return make_model(0)


@pytest.fixture(scope="session")
def engine_url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`palestra engine serve` for all tests; the address as a person would shorten it, without /v1."""
    server = Started(("engine", "serve", model, "--port", "0"), tmp_path_factory.mktemp("serve"), {})
    try:
        yield server.read_until(r"at (http://127.0.0.1:\d+)/v1/completions")[1]
        ended = server.interrupt()
        assert (ended.status, ended.err) == (0, "")
    finally:
        server.kill()


@pytest.fixture
def served(model: Path, engine_url: str) -> tuple[str | Path, ...]:
    """Options that name the model and its server."""
    return "--model", model, "--engine-url", engine_url, "--engine-model", model.name


TASK = {
    "family": "sql",
    "env": "palestra/Sql-v0",
    "split": "test",
    "instruction": "How many?",
    "budget": {"turns": 2},
}
SOURCE = {"builder": "palestra.tasks.sql.tiny:build", "args": {"seed": 1}}
_SUBJECT = tables(1)[0]
GOLD = f"SELECT SUM({_SUBJECT.number}) FROM {_SUBJECT.name}"


@pytest.fixture
def make_task() -> Callable[..., dict[str, Any]]:
    """`make_task("a", data={...}, env="...")`: a task as a line of a file; sound unless it is changed."""

    def make(name: str, **changed: Any) -> dict[str, Any]:
        data = {"database": SOURCE, "db_id": "one", "gold_sql": GOLD}
        return {"id": name, "data": data, **TASK, **changed}

    return make
