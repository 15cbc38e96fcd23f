"""What `palestra tasks new` writes: a world with its tasks and grader, and its test, in under 60 lines."""

from __future__ import annotations

import re
from pathlib import Path

from palestra.cli.errors import UsageError

WORLD = '''"""{title}: guess a number between 1 and 100. Replace the game by yours."""

import gymnasium

from palestra.envs.env import TaskEnv
from palestra.envs.tools import ToolError, tool
from palestra.tasks.task import Budget, Task, TaskSet
from palestra.trajectories.model import Score

ENV_ID = "{name}/{title}-v0"


class {title}(TaskEnv):
    family = "{name}"

    def _begin(self, task):  # build the world of a task; what it returns is what the agent sees first
        self._secret, self._low, self._high, self._right = task.data["secret"], 1, 100, False
        return task.instruction

    @tool
    def guess(self, number: int) -> str:
        """Guess the number."""
        if not 1 <= number <= 100:
            raise ToolError(f"the number is between 1 and 100, {{number}} is not")
        if number == self._secret:
            self._right = True
            self.finish()  # the agent has handed in its answer
            return "right"
        self._low, self._high = (max(self._low, number + 1), self._high) if number < self._secret else (
            self._low, min(self._high, number - 1))
        return "more" if number < self._secret else "less"

    def _anchor(self):  # all that the agent can know at this point
        return f"{{self._low}}..{{self._high}} {{self._right}}"

    def _score(self):  # the grader
        return Score(float(self._right), True, grader="{name}", grader_version="1")

    def _freeze(self):
        return self._secret, self._low, self._high, self._right

    def _thaw(self, world):
        self._secret, self._low, self._high, self._right = world

    def solution(self):  # for palestra tasks validate
        return [f'{{{{"name": "guess", "arguments": {{{{"number": {{self._secret}}}}}}}}}}']


def load():
    splits = {{"train": range(1, 81), "test": range(81, 101)}}
    return TaskSet("{name}", [
        Task(id=f"{name}/{{n}}", family="{name}", env=f"{{__name__}}:{{ENV_ID}}", split=split,
             instruction="Find the number.", data={{"secret": n}}, budget=Budget(turns=8))
        for split, numbers in splits.items() for n in numbers])


gymnasium.register(ENV_ID, {title}, disable_env_checker=True, order_enforce=False)
'''
TEST = """from palestra.envs.validate import validate_task
from {name}.world import load


def test_every_task_measures_what_it_should():
    assert [report for report in map(validate_task, load()) if not report.passed] == []
"""


def write_scaffold(name: str, parent: Path) -> Path:
    """Make the folder `name` in `parent`; returns it. Raises UsageError for a bad name or a folder that is there."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UsageError(f"{name!r} cannot be the name of a package: use lower-case letters, digits and _")
    folder = parent / name
    if folder.exists():
        raise UsageError(f"{folder} is there already: choose another name")
    title = "".join(part.capitalize() for part in name.split("_"))
    folder.mkdir(parents=True)
    (folder / "world.py").write_text(WORLD.format(name=name, title=title))
    (folder / "test_world.py").write_text(TEST.format(name=name))
    return folder
