"""`palestra train`: the recipe of examples/, continued, changed, and wrong in every way that people are."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palestra.trajectories.store import Store

Command = Callable[..., Any]
EXAMPLE = Path(__file__).parents[2] / "examples" / "sql_tiny.toml"
COMMAND = (sys.executable, "-c", "from palestra.cli import main; main()")
SHORT = {"steps": "1", "groups_per_step": "2", "group_size": "2", "max_reply_tokens": "4"}

Write = Callable[..., Path]


@pytest.fixture
def recipe(tmp_path: Path, model: Path) -> Write:
    """`recipe(steps="2")`: the example, on the tiny model and shortened, with keys of [train] changed or added."""

    def write(name: str = "mine.toml", model: Path | str = model, **train: str) -> Path:
        parsed = tomllib.loads(EXAMPLE.read_text())
        keys = {key: _toml(value) for key, value in parsed["train"].items()} | SHORT | train
        top = {"model": f'"{model}"', "tasks": f'"{parsed["tasks"]}"', "run_dir": '"run"'}
        lines = [f"{k} = {v}" for k, v in top.items()] + ["[train]"] + [f"{k} = {v}" for k, v in keys.items()]
        path = tmp_path / name
        path.write_text("\n".join(lines))
        return path

    return write


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def test_the_example_says_how_to_run_it() -> None:
    assert EXAMPLE.read_text().startswith("# palestra train examples/sql_tiny.toml\n")


@pytest.mark.slow
def test_it_trains_continues_and_starts_over(palestra: Command, recipe: Write, tmp_path: Path) -> None:
    first = palestra("train", recipe())
    assert (first.status, first.err) == (0, "")
    assert "step   1/1" in first.out and "done: run/checkpoints/000001 holds the weights" in first.out

    longer = palestra("train", recipe(steps="2"))
    assert longer.status == 0 and "continuing run after step 1" in longer.out
    assert "step   2/2" in longer.out and "step   1/" not in longer.out
    with Store.open(tmp_path / "run" / "store") as store:
        assert len(store) == 2 * 4

    changed = palestra("train", recipe(steps="2", group_size="3"))
    assert changed.status == 2 and "train.group_size 2 (now 3)" in changed.err and "--fresh" in changed.err

    (tmp_path / "run" / "notes.txt").write_text("mine")
    fresh = palestra("train", recipe(group_size="3"), "--fresh")
    assert fresh.status == 0 and "step   1/1" in fresh.out
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"

    inside = recipe(model="run/checkpoints/000001")
    kept = palestra("train", inside, "--fresh")
    assert kept.status == 2 and "would delete the model" in kept.err
    assert (tmp_path / "run" / "checkpoints" / "000001").is_dir()


@pytest.mark.slow
def test_several_processes_train_together(recipe: Write, tmp_path: Path) -> None:
    """And continue, and all end where the first one cannot go on."""
    first = torchrun(tmp_path, recipe(optimizer='"adamw"'))
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("step   1/1") == 1 and first.stdout.count("done: run/checkpoints/000001") == 1
    second = torchrun(tmp_path, recipe(optimizer='"adamw"', steps="2"), "--resume")
    assert second.returncode == 0, second.stderr
    assert "continuing run after step 1" in second.stdout and second.stdout.count("step   2/2") == 1
    with Store.open(tmp_path / "run" / "store") as store:
        assert len(store) == 2 * 4
    changed = torchrun(tmp_path, recipe(optimizer='"adamw"', steps="2", group_size="3"))
    assert changed.returncode != 0 and changed.stderr.count("train.group_size 2 (now 3)") == 1


def torchrun(cwd: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """`palestra train` in two processes."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "--no-python", *COMMAND, "train", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "140"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def test_starting_over_is_not_continuing(palestra: Command, recipe: Write) -> None:
    ended = palestra("train", recipe(), "--fresh", "--resume")
    assert ended.status == 2 and "give one of them" in ended.err


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("stepz", "1", "there is no key train.stepz, did you mean steps?"),
        ("steps", '"many"', "train.steps: input should be a valid integer"),
        ("steps", "0", "train.steps must be at least 1, not 0"),
        ("group_size", "-1", "train.group_size must be at least 1, not -1"),
        ("matrix_lr", "0.0", "train.matrix_lr must be above 0, not 0.0"),
        ("temperature", "0", "train.temperature must be above 0, not 0.0"),
        ("estimator", '"gippo"', "train.estimator: there is no 'gippo', did you mean gigpo?"),
        (
            "estimator_options",
            "{gama = 1}",
            "train.estimator_options: gigpo has no gama, did you mean gamma?",
        ),
        ("aggregation", '"mean"', "train.aggregation: input should be 'token-mean', 'rollout-mean'"),
        ("loss", '"gpso"', "train.loss: there is no 'gpso', did you mean gspo?"),
        (
            "sampler",
            '"magic"',
            "train.sampler: there is no 'magic'; there are uniform, dps, vade, difficulty, dapo",
        ),
        ("replay", '"recnt"', "train.replay: there is no 'recnt', did you mean recent?"),
        ("adjust", '[{name = "d3s", shar = 1}]', "train.adjust: d3s has no shar, did you mean share?"),
    ],
)
def test_a_wrong_key_is_named(palestra: Command, recipe: Write, key: str, value: str, said: str) -> None:
    ended = palestra("train", recipe(**{key: value}))
    assert ended.status == 2 and said in ended.err and "mine.toml" in ended.err
    assert ended.err.count("\n") == 1


def test_a_missing_key_is_named(palestra: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('model = "m"\nrun_dir = "r"\ntask = "sql-tiny"')
    ended = palestra("train", "mine.toml")
    assert ended.status == 2 and "the key tasks is missing" in ended.err
    assert "there is no key task, did you mean tasks?" in ended.err


def test_a_missing_file_is_a_mistake(palestra: Command) -> None:
    ended = palestra("train", "mine.toml")
    assert ended.status == 2 and "cannot read mine.toml: No such file or directory" in ended.err


def test_what_is_not_toml_is_a_mistake(palestra: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("steps: 3")
    ended = palestra("train", "mine.toml")
    assert ended.status == 2 and "is not TOML" in ended.err and "line 1" in ended.err


def test_a_missing_model_is_a_mistake(palestra: Command, recipe: Write) -> None:
    ended = palestra("train", recipe(model="nowhere/at/all"))
    assert ended.status == 2 and "model: nowhere/at/all is no directory" in ended.err


def test_unknown_tasks_and_empty_splits_are_mistakes(
    palestra: Command, recipe: Write, tmp_path: Path
) -> None:
    path = recipe()
    sound = path.read_text()
    path.write_text(sound.replace("sql-tiny", "sql-tny"))
    ended = palestra("train", path)
    assert ended.status == 2 and "Did you mean 'sql-tiny'?" in ended.err
    (tmp_path / "empty.jsonl").write_text("")
    path.write_text(sound.replace("sql-tiny", "empty.jsonl"))
    ended = palestra("train", path)
    assert ended.status == 2 and "has no tasks in split 'train'" in ended.err


def test_checkpoints_of_unknown_settings_are_not_continued(
    palestra: Command, recipe: Write, tmp_path: Path
) -> None:
    (tmp_path / "run" / "checkpoints" / "000003").mkdir(parents=True)
    ended = palestra("train", recipe())
    assert ended.status == 2 and "settings that are not known" in ended.err


def test_when_no_rollout_has_a_reward_it_says_why_and_ends_with_1(
    palestra: Command, recipe: Write, make_task: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    import orjson

    lost = [make_task(f"t{i}", env="acme/World-v0", split="train") for i in range(2)]
    (tmp_path / "lost.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lost)))
    path = recipe()
    path.write_text(path.read_text().replace("sql-tiny", "lost.jsonl"))
    ended = palestra("train", path)
    assert ended.status == 1 and "none of 4 rollouts has a reward" in ended.err
    assert "acme" in ended.err and ended.err.count("\n") == 1
