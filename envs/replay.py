"""Worlds around a program that cannot be copied or pickled: a game interpreter, a simulator, somebody's environment.

The state of such a world is its task and the moves made in it. A snapshot is those moves; the first move after a
restore starts the program again, repeats them, and checks that it shows what it showed. A world implements `_open`,
`_apply` and `_shut`, and its tools call `_move`; anchors, scores, snapshots and pickling are here.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvStateError
from palestra.tasks.task import Task, TaskSet
from palestra.trajectories.model import Score


@dataclass(frozen=True, slots=True)
class View:
    """What the program shows after a move, and how the episode stands."""

    text: str
    """The observation."""
    place: str = ""
    """What names the decision point; the observation where this is empty."""
    value: float = 0.0
    """The score, should the episode end here; in [0, 1]."""
    parts: Mapping[str, float] = field(default_factory=dict)
    ended: bool = False
    """The program has ended the episode."""
    expired: bool = False
    """A limit of the program's own has cut the episode short."""


@dataclass(frozen=True, slots=True)
class Played:
    """A snapshot: the moves so far, and the view after them."""

    moves: tuple[str, ...]
    view: View


class ReplayEnv(TaskEnv):
    """See the module."""

    grader: ClassVar[str] = "world"
    grader_version: ClassVar[str] = "1"

    def __init__(self, tasks: TaskSet | str | None = None) -> None:
        """`tasks`: where `reset` without a task draws from."""
        super().__init__(tasks)
        self._moves: list[str] = []
        self._view = View("")
        self._program: Any = None
        """Whatever `_open` keeps running. Never pickled."""
        self._current = False
        """Whether the program stands where `_moves` have led."""

    @abstractmethod
    def _open(self, task: Task) -> View:
        """Put the program to the beginning of `task`. Raises EnvSetupError."""

    @abstractmethod
    def _apply(self, move: str) -> View:
        """Make one move in the program. Raises ToolError, without a move, for what it does not take."""

    @abstractmethod
    def _shut(self) -> None:
        """End the program. Called only where there is one."""

    def close(self) -> None:
        """End the program; the episode can go on, in a new one."""
        if self._program is not None:
            self._shut()
        self._program, self._current = None, False

    def _move(self, move: str) -> str:
        """For tools: make one move; returns what is shown. Raises ToolError."""
        self._catch_up()
        self._view = self._apply(move)
        self._moves.append(move)
        if self._view.ended:
            self.finish()
        elif self._view.expired:
            self.expire()
        return self._view.text

    def _begin(self, task: Task) -> str:
        self._current = False
        self._view, self._moves = self._open(task), []
        self._current = True
        return self._view.text

    def _anchor(self) -> str:
        return hashlib.sha256((self._view.place or self._view.text).encode()).hexdigest()[:16]

    def _state(self) -> str:
        return repr((self._moves, self._view.text))

    def _score(self) -> Score:
        view = self._view
        how = "ended" if view.ended else "was cut short" if view.expired else "stands"
        evidence = f"after {len(self._moves)} moves the world {how} at {view.value:g}"
        return Score(view.value, True, view.parts, self.grader, self.grader_version, evidence)

    def _freeze(self) -> Played:
        return Played(tuple(self._moves), self._view)

    def _thaw(self, world: Played) -> None:
        self._current = self._current and tuple(self._moves) == world.moves
        self._moves, self._view = list(world.moves), world.view

    def _catch_up(self) -> None:
        """Bring the program to where the episode stands. Raises EnvStateError where it does not repeat itself."""
        if self._current:
            return
        view = self._open(self.task)
        for move in self._moves:
            view = self._apply(move)
        if self._moves and view != self._view:
            raise EnvStateError(
                f"task {self.task.id!r} cannot be restored: after the same {len(self._moves)} moves its world shows "
                f"{view.text[:80]!r} instead of {self._view.text[:80]!r}"
            )
        self._current = True

    def __getstate__(self) -> Mapping[str, Any]:
        return self.__dict__ | {"_program": None, "_current": False}
