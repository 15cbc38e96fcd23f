"""`palestra tasks`: list, show, validate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from palestra.tasks.registry import registered

Command = Callable[..., Any]
MakeTask = Callable[..., dict[str, Any]]


def write(path: Path, *tasks: dict[str, Any]) -> Path:
    path.write_bytes(b"\n".join(map(orjson.dumps, tasks)))
    return path


def test_list_names_every_registered_set(palestra: Command) -> None:
    ended = palestra("tasks", "list")
    assert ended.status == 0
    assert all(name in ended.out and description in ended.out for name, description in registered())


def test_show_counts_by_split_and_kind(palestra: Command, make_task: MakeTask, tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", make_task("a"), make_task("b"), make_task("[c]", split="train"))
    ended = palestra("tasks", "show", file)
    rows = [line.split() for line in ended.out.splitlines()]
    assert ended.status == 0
    assert ["test", "sql", "2"] in rows and ["train", "sql", "1"] in rows
    assert "first: a\n  How many?" in ended.out


def test_show_prints_one_task_as_json(palestra: Command, make_task: MakeTask, tmp_path: Path) -> None:
    file = write(tmp_path / "mine.jsonl", make_task("a", instruction="[bold]how many?[/]"))
    ended = palestra("tasks", "show", file, "a")
    assert json.loads(ended.out)["instruction"] == "[bold]how many?[/]"


def test_validate_passes_sound_tasks(palestra: Command) -> None:
    ended = palestra("tasks", "validate", "sql-tiny", "--limit", "1")
    assert ended.status == 0 and "3 of 3 tasks are valid" in ended.out


def test_validate_takes_several_processes_which_know_the_same_worlds(
    palestra: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert palestra("tasks", "new", "my_world").status == 0
    ended = palestra("tasks", "validate", "my_world.world:load", "--limit", "2", "--workers", "2")
    assert ended.status == 0 and "tasks are valid" in ended.out


def test_validate_names_each_unsound_task_once_with_the_reason(
    palestra: Command, make_task: MakeTask, tmp_path: Path
) -> None:
    missing = {"database": {"file": "gone.sqlite"}, "db_id": "x", "gold_sql": "SELECT 1"}
    no_gold = make_task("no gold")
    del no_gold["data"]["gold_sql"]
    (tmp_path / "corrupt.sqlite").write_text("no database at all")
    corrupt = missing | {"database": {"file": "corrupt.sqlite"}}
    file = write(
        tmp_path / "mine.jsonl",
        make_task("sound"),
        make_task("no database", data=missing),
        make_task("corrupt", data=corrupt),
        make_task("no world", env="palestra/Sqll-v0"),
        make_task("not ours", env="CartPole-v1"),
        no_gold,
    )
    ended = palestra("tasks", "validate", file)
    assert ended.status == 1 and "1 of 6 tasks are valid" in ended.out and ended.err == ""
    for name, reason in {
        "no database": "gone.sqlite cannot be opened",
        "corrupt": "corrupt.sqlite cannot be read: file is not a database",
        "no world": "there is no environment 'palestra/Sqll-v0'",
        "not ours": "only a TaskEnv can be validated",
        "no gold": "no gold_sql",
    }.items():
        assert ended.out.splitlines().count(name) == 1
        assert ended.out.count(reason) == 1, reason
    assert "sound\n" not in ended.out


def test_unknown_set_is_answered_with_the_nearest_name(palestra: Command) -> None:
    ended = palestra("tasks", "show", "sql-tinny")
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("error: there is no task set 'sql-tinny'. Did you mean 'sql-tiny'?")
    assert ended.err.count("\n") == 1


def test_unknown_task_is_answered_with_the_nearest_id(palestra: Command) -> None:
    ended = palestra("tasks", "show", "sql-tiny", "sql-tiny/test/0003/cont")
    assert ended.status == 2 and "Did you mean 'sql-tiny/test/0003/count'?" in ended.err


def test_malformed_file_is_answered_with_line_and_field(
    palestra: Command, make_task: MakeTask, tmp_path: Path
) -> None:
    file = write(tmp_path / "mine.jsonl", make_task("a"), make_task("b", split="tset"))
    ended = palestra("tasks", "show", file)
    assert ended.status == 2 and "line 2: field 'split'" in ended.err and ended.err.count("\n") == 1


def test_file_that_is_no_json_is_answered_with_the_line(palestra: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"id": \n')
    ended = palestra("tasks", "validate", "mine.jsonl")
    assert ended.status == 2 and "mine.jsonl, line 1: not JSON" in ended.err


def test_missing_file_is_a_mistake(palestra: Command) -> None:
    ended = palestra("tasks", "show", "mine.jsonl")
    assert ended.status == 2 and "cannot read mine.jsonl" in ended.err


def test_empty_set_is_a_mistake(palestra: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("")
    ended = palestra("tasks", "validate", "mine.jsonl")
    assert ended.status == 2 and "is empty" in ended.err


def test_unknown_parameter_is_a_mistake(palestra: Command) -> None:
    ended = palestra("tasks", "show", "sql-gym?worlds=3")
    assert ended.status == 2 and "worlds" in ended.err


def test_function_that_does_not_import_is_a_mistake(palestra: Command) -> None:
    ended = palestra("tasks", "show", "nowhere.tasks:load")
    assert ended.status == 2 and "nowhere" in ended.err
