"""Task files, well and badly made."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.tasks.errors import TaskFileError
from palestra.tasks.files import read_tasks, write_tasks
from palestra.tasks.task import Task

GOOD = {"id": "a", "family": "sql", "env": "palestra/Sql-v0", "split": "train", "instruction": "How many?"}


@given(
    instruction=st.text(),
    name=st.text(min_size=1),
    data=st.dictionaries(st.text(), st.text() | st.integers(-(2**53), 2**53) | st.none(), max_size=3),
)
def test_written_tasks_read_back_equal(
    tmp_path_factory: pytest.TempPathFactory, instruction: str, name: str, data: dict[str, object]
) -> None:
    path = tmp_path_factory.mktemp("tasks") / "t.jsonl"
    task = Task.model_validate({**GOOD, "id": name, "instruction": instruction, "data": data})
    write_tasks(path, [task])
    (read,) = read_tasks(path)
    assert read == task and read.content_hash == task.content_hash


def test_a_json_list_works_like_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(orjson.dumps([GOOD, {**GOOD, "id": "b"}]))
    assert [t.id for t in read_tasks(path)] == ["a", "b"]
    assert read_tasks(path).name == "t"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", r"t\.jsonl, line 2: not JSON"),
        ('{"id": "b"}', r"line 2: field 'family'.*field 'env'"),
        (
            orjson.dumps({**GOOD, "id": "b", "split": "val"}).decode(),
            r"line 2: field 'split': Input should be",
        ),
        (orjson.dumps({**GOOD, "id": "b", "budget": {"turns": 0}}).decode(), r"field 'budget.turns'"),
        (orjson.dumps({**GOOD, "id": "b", "extra": 1}).decode(), r"field 'extra'"),
        ("3", r"line 2: field '\(whole\)'"),
        (orjson.dumps(GOOD).decode(), r"line 2: field 'id': 'a' is used twice"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(orjson.dumps(GOOD).decode() + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(TaskFileError, match=says):
        read_tasks(path)


def test_an_absent_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskFileError, match="nowhere.jsonl.*No such file"):
        read_tasks(tmp_path / "nowhere.jsonl")
    binary = tmp_path / "b.jsonl"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(TaskFileError, match="cannot read .*b.jsonl"):
        read_tasks(binary)


def test_a_json_file_must_hold_a_list(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(TaskFileError, match="must hold a list, not a dict"):
        read_tasks(path)
