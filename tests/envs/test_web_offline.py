"""palestra/WebOffline-v0: recorded steps, matched and put right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palestra.envs.validate import validate_task
from palestra.envs.web.offline import OfflineEnv
from palestra.tasks.errors import TaskFileError
from palestra.tasks.registry import load_tasks

TASKS = load_tasks("web-offline")


def act(**arguments: Any) -> str:
    return json.dumps({"name": "act", "arguments": arguments})


def test_the_made_up_set_is_valid() -> None:
    assert all(validate_task(task).passed for task in TASKS[:5])


def test_a_mistake_is_put_right_once() -> None:
    env = OfflineEnv(patches=1)
    first, _ = env.reset(options={"task": TASKS[0]})
    assert "Search for a" in first
    observation, _, terminated, _, _ = env.step(act(type="type", value="x"))
    assert observation.startswith("instead this was done") and not terminated
    assert env.step(act(type="click", target=[1, 1]))[1:3] == (0.0, True)
    assert env.score().parts["progress"] == 0.0


def test_progress_is_told_apart_from_success() -> None:
    env = OfflineEnv(patches=1)
    env.reset(options={"task": TASKS[0]})
    env.step(act(type="type"))
    *_, last = [env.step(action) for action in env.solution()[1:]]
    assert last[1] == 0.0 and env.score().parts["progress"] == pytest.approx(2 / 3)


def test_each_step_says_whether_it_was_the_experts() -> None:
    env = OfflineEnv(patches=1)
    _, begun = env.reset(options={"task": TASKS[0]})
    wrong = [env.step("no call")[-1], env.step(act(type=" "))[-1], env.step(act(type="type"))[-1]]
    right = [env.step(action)[-1] for action in env.solution()[1:2]]
    assert not begun["matched"]
    assert [info["matched"] for info in wrong + right] == [False, False, False, True]
    assert env.step("no call")[-1]["matched"] is False


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(map(json.dumps, records)))
    return path


def test_a_file_of_ui_s1(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(b"pixels")
    steps = [
        {"action_content": {"action": "click", "coordinate": [5, 6]}, "screenshot": str(tmp_path / "1.png"),
         "bbox": [0, 0, 10, 12]},
        {"action_content": {"action": "type", "text": "hello"}, "observation": "a box"},
        {"action_content": {"action": "system_button", "button": "Back"}, "observation": "done"},
    ]  # fmt: skip
    tasks = load_tasks(
        f"web-offline?path={write(tmp_path / 'gui.jsonl', {'goal': 'Greet.', 'steps': steps})}"
    )
    assert [s["action"] for s in tasks[0].data["steps"]] == [
        {"type": "click", "target": [0, 0, 10, 12]},
        {"type": "type", "value": "hello"},
        {"type": "system_button", "value": "Back"},
    ]
    assert tasks[0].data["steps"][0]["observation"].startswith("screenshot ")
    assert validate_task(tasks[0]).passed


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"goal": "x"}, "KeyError"),
        ({"goal": "x", "steps": []}, "no steps"),
        (
            {"goal": "x", "steps": [{"action_content": {"action": "wait"}}]},
            "neither observation nor screenshot",
        ),
        (
            {"goal": "x", "steps": [{"action_content": {"action": "wait"}, "screenshot": "/none"}]},
            "cannot read",
        ),
    ],
)
def test_a_bad_file_names_the_line(tmp_path: Path, record: Any, message: str) -> None:
    with pytest.raises(TaskFileError, match=f"line 1.*{message}"):
        load_tasks(f"web-offline?path={write(tmp_path / 'gui.jsonl', record)}")
