"""A mistake of the user is one line and status 2; a bug keeps its traceback; a full disk loses nothing."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from palestra.trajectories.store import Store

Command = Callable[..., Any]
Options = tuple[str | Path, ...]


def mistake(ended: Any, *words: str) -> None:
    assert ended.status == 2 and ended.err.startswith("error: ") and ended.err.count("\n") == 1, ended
    assert all(word in ended.err for word in words), ended.err


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--split", "validation", "'train', 'dev', 'test'"),
        ("--mode", "training", "'train', 'eval'"),
        ("--samples", "0", "greater than or equal to 1"),
        ("--limit", "-3", "greater than or equal to 1"),
        ("--temperature", "-1", "greater than or equal to 0"),
        ("--max-reply-tokens", "many", "integer"),
    ],
)
def test_a_value_that_does_not_fit_is_answered_with_what_does(
    palestra: Command, served: Options, option: str, value: str, allowed: str
) -> None:
    ended = palestra("rollout", "sql-tiny", *served, "--run-dir", "r", option, value)
    assert ended.status == 2 and option in ended.err and allowed in ended.err
    assert "Traceback" not in ended.err


def test_an_unknown_flag_is_answered_with_the_nearest(palestra: Command) -> None:
    ended = palestra("rollout", "sql-tiny", "--modle", "m")
    assert ended.status == 2 and "No such option: --modle" in ended.err and "--model" in ended.err


def test_an_unknown_command_is_a_mistake(palestra: Command) -> None:
    ended = palestra("rolout")
    assert ended.status == 2 and "rolout" in ended.err and "Traceback" not in ended.err


def test_version(palestra: Command) -> None:
    from palestra import __version__

    ended = palestra("--version")
    assert (ended.status, ended.out) == (0, f"palestra {__version__}\n")


# Models.


def test_a_directory_that_is_no_model(palestra: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    base = ("rollout", "sql-tiny", "--run-dir", "r", "--model")
    mistake(palestra(*base, "nowhere"), "nowhere is no directory", "palestra demo")
    mistake(palestra(*base, "empty"), "empty has no tokenizer.json")
    mistake(palestra("engine", "serve", "empty"), "empty has no tokenizer.json")
    mistake(palestra("proxy", "--model", "empty", "--run-dir", "r"), "empty has no tokenizer.json")
    assert not (tmp_path / "r").exists()


@pytest.fixture
def copy(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "copy"))


def test_a_model_of_another_architecture(palestra: Command, copy: Path) -> None:
    config = orjson.loads((copy / "config.json").read_bytes())
    (copy / "config.json").write_bytes(orjson.dumps(config | {"model_type": "llama"}))
    mistake(palestra("engine", "serve", copy), "model_type is 'llama'", "vllm serve")
    mistake(palestra("rollout", "sql-tiny", "--model", copy, "--run-dir", "r"), "'llama'")


def test_a_model_without_weights(palestra: Command, copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    mistake(palestra("engine", "serve", copy), "has no *.safetensors file")


def test_damaged_weights(palestra: Command, copy: Path, tmp_path: Path) -> None:
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    mistake(palestra("engine", "serve", copy), "model.safetensors cannot be read")
    (tmp_path / "mine.toml").write_text('model = "copy"\ntasks = "sql-tiny"\nrun_dir = "r"')
    mistake(palestra("train", "mine.toml"), "cannot be loaded")


def test_a_damaged_tokenizer(palestra: Command, served: Options, copy: Path) -> None:
    (copy / "tokenizer.json").write_text("{}")
    mistake(palestra("rollout", "sql-tiny", *served, "--model", copy, "--run-dir", "r"), "is no tokenizer")


# Stores.


def test_what_is_no_store(palestra: Command, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for where in ("nowhere", model, "file"):
        mistake(palestra("show", where), "there are no rollouts in")
        mistake(palestra("eval", "compare", where, where), "there are no rollouts in")


def test_a_run_dir_that_is_a_file(palestra: Command, served: Options, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    mistake(palestra("rollout", "sql-tiny", *served, "--run-dir", "file"), "nothing can be kept in file")


def test_a_store_of_the_future(palestra: Command, served: Options, tmp_path: Path) -> None:
    Store.open(tmp_path / "r" / "store", write=True).close()
    (tmp_path / "r" / "store" / "store.json").write_text('{"schema": 99}')
    mistake(palestra("show", "r"), "schema 99", "upgrade palestra")
    mistake(palestra("rollout", "sql-tiny", *served, "--run-dir", "r"), "schema 99", "upgrade palestra")


def test_a_rollout_that_is_not_there(palestra: Command, tmp_path: Path) -> None:
    Store.open(tmp_path / "r" / "store", write=True).close()
    mistake(palestra("show", "r", "after/x/0"), "no rollout 'after/x/0'")
    mistake(palestra("eval", "compare", "r", "r"), "r has 0 runs", "it is empty")


@pytest.mark.e2e
def test_a_full_disk_keeps_what_was_committed_and_the_same_command_continues(
    start: Command, palestra: Command, served: Options, tmp_path: Path
) -> None:
    base = ("rollout", "sql-tiny", *served, "--run-dir", "r", "--limit", "60", "--max-reply-tokens", "4")
    limit = 300_000
    ended = start(*base, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))).wait()
    mistake(ended, "no space to write", "What was committed is safe")
    with Store.open(tmp_path / "r" / "store") as store:
        kept = list(store.trajectories())
    assert 0 < len(kept) < 60
    again = palestra(*base)
    assert again.status == 0 and f"{len(kept)} rollouts are there" in again.out
    with Store.open(tmp_path / "r" / "store") as store:
        ids = store.ids(run_id="rollouts")  # what was lost on the way is kept as another run
        assert ids[: len(kept)] == [t.rollout.rollout_id for t in kept] and len(ids) == 60


# Extras and bugs.


@pytest.mark.e2e
@pytest.mark.parametrize("missing", ["torch", "transformers", "safetensors"])
def test_without_the_extra_its_name_is_given(missing: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f'model = "{model}"\ntasks = "sql-tiny"\nrun_dir = "r"')
    hide = f"import sys; sys.modules['{missing}'] = None; from palestra.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", hide, "train", "mine.toml"], capture_output=True, text=True, cwd=tmp_path
    )
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.startswith(f"error: {missing}") and "pip install 'palestra[train]'" in ended.stderr


@pytest.mark.e2e
def test_a_bug_keeps_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def load():\n    raise ZeroDivisionError('a bug')\n")
    code = "import sys; sys.path.insert(0, '.'); from palestra.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, "tasks", "show", "broken:load"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert ended.returncode == 1 and "Traceback" in ended.stderr and "ZeroDivisionError" in ended.stderr
