"""palestra/ScienceWorld-v0: elementary science in a simulated house (Wang et al. 2022, arXiv:2203.07540).

A task names one of its 30 tasks and a variation:

    {"task": "boil", "variation": 3, "simplify": "easy"}

An action is a command in plain words, or the tool call act(command). The score is 1 for full marks and else 0;
`parts["points"]` is the simulator's own score, from 0 to 1, which gives points on the way (some of them for nothing)
and takes all for an irreversible mistake, which ends the episode. The anchor is what is to be seen where the agent
stands and what it carries. The simulator runs in a Java machine, which takes seconds to start and is kept for the next
episode, and for the next environment after this one was closed.

The simulator lists what is in a place in an order that changes from run to run: lists are sorted here, so that the same
place reads the same. Its own solutions are drawn at random too: the first one found for a task is kept.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from palestra.envs.errors import EnvSetupError
from palestra.envs.replay import ReplayEnv, View
from palestra.envs.tools import ToolError, tool
from palestra.tasks.task import Task

_MAX_COMMAND = 200
_MAX_IDLE = 2
_END_S = 10.0
_idle: list[Any] = []
"""Simulators that no environment is using."""
_inherited: list[Any] = []
"""Simulators of the process that this one was forked from: not to be used, and not to be ended, here."""
_lock = threading.Lock()
_solutions: dict[str, list[str]] = {}
"""By content hash of the task."""
_LISTED = re.compile(r"(?:^\t.*\n?)+", re.MULTILINE)
_INSIDE = re.compile(r"\(containing ([^()]*)\)")


class ScienceWorldEnv(ReplayEnv):
    """See the module."""

    family: ClassVar[str] = "scienceworld"
    grader: ClassVar[str] = "scienceworld-score"

    @tool
    def act(self, command: str) -> str:
        """Type one command, for example: open door to kitchen."""
        return self._move(command)

    def _on_text(self, text: str) -> str:
        return self._move(text)

    def solution(self) -> Sequence[str]:
        """The simulator's own path to full marks."""
        if self.task.content_hash not in _solutions:
            self._catch_up()
            self._load(self.task, gold=True)
            self._current = False
            _solutions[self.task.content_hash] = list(self._program.get_gold_action_sequence())
        path = _solutions[self.task.content_hash]
        return [json.dumps({"name": "act", "arguments": {"command": step}}) for step in path]

    def _open(self, task: Task) -> View:
        if self._program is None:
            self._program = _idle_one() or _launch()
        self._load(task)
        text, info = self._program.reset()
        return self._view_of(f"{info['taskDesc'].strip()}\n\n{text.strip()}", info)

    def _apply(self, move: str) -> View:
        command = " ".join(move.split())
        if not command or len(command) > _MAX_COMMAND or not command.isprintable():
            raise ToolError("a command is a few words on one line, for example: open door to kitchen")
        text, _, done, info = self._program.step(command)
        return self._view_of(str(text).strip(), info, bool(done))

    def _shut(self) -> None:
        with _lock:
            if len(_idle) < _MAX_IDLE:
                _idle.append(self._program)
                return
        _end(self._program)

    def _load(self, task: Task, gold: bool = False) -> None:
        data = task.data
        try:
            self._program.load(
                data["task"], int(data["variation"]), data.get("simplify", ""), generateGoldPath=gold
            )
        except (KeyError, ValueError) as error:
            raise EnvSetupError(f"task {task.id!r}: ScienceWorld does not take {data!r}: {error}") from error

    def _view_of(self, text: str, info: Any, done: bool = False) -> View:
        points = max(0, int(info["score"])) / 100
        place = steady(f"{info['look'].strip()}\n{info['inv'].strip()}")
        return View(
            steady(text), place=place, value=float(points == 1.0), parts={"points": points}, ended=done
        )


def steady(text: str) -> str:
    """`text` with the lines of each list, and the things in each container, in alphabetical order."""
    inside = _INSIDE.sub(lambda m: f"(containing {', '.join(sorted(m.group(1).split(', ')))})", text + "\n")
    return _LISTED.sub(lambda m: "".join(sorted(m.group().splitlines(keepends=True))), inside).removesuffix(
        "\n"
    )


def _idle_one() -> Any:
    with _lock:
        return _idle.pop() if _idle else None


def _after_fork() -> None:
    _inherited.extend(_idle)
    _idle.clear()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _end_idle() -> None:
    while (simulator := _idle_one()) is not None:
        _end(simulator)


def _end(simulator: Any) -> None:
    """End it, whatever became of its process, with what it leaves open itself: pipes, and a folder."""
    gateway, process = simulator._gateway, simulator._gateway.java_process
    gateway.shutdown()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()  # at the end of its input the process ends
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    simulator._obj_tree_tempdir.cleanup()


def _launch() -> Any:
    """A simulator that never cuts an episode short. Raises EnvSetupError without the package or without Java."""
    if shutil.which("java") is None:
        raise EnvSetupError(
            "ScienceWorld needs Java: install it (Debian: apt-get install default-jre-headless)"
        )
    try:
        from scienceworld import ScienceWorldEnv as Simulator
    except ImportError as error:
        raise EnvSetupError(
            f"ScienceWorld is not installed: pip install 'palestra[worlds]' ({error})"
        ) from error

    class Lean(Simulator):  # type: ignore[misc]
        """Without the list of valid actions, most of a step's time, which is not read here, and with another end.

        The library's __del__ writes to a pipe that may be closed, and in a forked process it would end its parent's.
        """

        maker = 0

        def get_valid_action_object_combinations(self) -> list[str]:
            return []

        def __del__(self) -> None:
            if self.maker == os.getpid():
                _end(self)

    made = Lean("", envStepLimit=1_000_000)
    made.maker = os.getpid()
    return made
