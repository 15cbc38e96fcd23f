"""palestra/Web-v0: act on web pages in a real browser.

The first observation is the instruction and the page; every later one is what came of the action and the page. A page
is its accessibility tree (`observation.py`), in which each element has an id that stays with it as long as the
document. Elements are named by id, by role and name, or by coordinates (`hands.py`). Actions are tools, or the same as
text: `click 12`, `fill 3 "a lamp"`, `submit "4 orders"`.

The network holds the task's sites alone (`gateway.py`). The reward is measured outside of the page: MiniWoB++ by a
result that the page hands over once (`miniwob.py`), sites by the database behind them (`sites.py`). The anchor is
a digest of URL, tabs, tree and form state. `info["irreversible"]` says that the step changed what lies behind the
pages. A snapshot holds the actions so far and the digest; `restore` plays them again and refuses to go on where they
lead elsewhere. A page or a browser that crashed or hangs is a SandboxError.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvSetupError, SandboxError
from palestra.envs.tools import ToolError
from palestra.envs.web.frozen import Frozen
from palestra.envs.web.host import START_S, host
from palestra.envs.web.observation import View
from palestra.envs.web.pictures import marked, pixels, screenshot
from palestra.envs.web.recording import Recording
from palestra.envs.web.session import Session
from palestra.envs.web.spoken import parse_text
from palestra.envs.web.target import WebTarget
from palestra.envs.web.targets import target_of
from palestra.envs.web.tools import WebTools
from palestra.tasks.task import Task, TaskSet
from palestra.trajectories.model import Score

T = TypeVar("T")

RESET_S = 30.0


class WebEnv(WebTools):
    """Web pages. See the module."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 1}
    family: ClassVar[str] = "web"

    def __init__(
        self,
        tasks: TaskSet | str | None = None,
        max_chars: int = 6000,
        header: bool = True,
        images: Literal["none", "plain", "marked"] = "none",
        record: str | Path | None = None,
        render_mode: Literal["rgb_array"] | None = None,
    ) -> None:
        """`max_chars` bounds what is shown of a page; `header`: show tab, title, URL and scroll position.

        `images`: what `info["image"]` holds, a screenshot as PNG or one with marks; "none" leaves it out.
        `record`: where pictures, video and trace of every episode go (`recording.py`).
        """
        super().__init__(tasks)
        self.render_mode = render_mode
        self._record = Path(record) if record is not None else None
        self._recording: Recording | None = None
        self._images = images
        self._max_chars, self._header = max_chars, header
        self._session: Session | None = None
        self._target: WebTarget | None = None
        self._view: View | None = None
        self._actions: list[str] = []
        self._answer: str | None = None
        self._unsafe = 0
        self._pending: Frozen | None = None

    # What else callers use.

    @property
    def view(self) -> View:
        """The page as the agent was last shown it. Raises EnvSetupError before reset."""
        if self._view is None:
            raise EnvSetupError("call reset() before looking at the page")
        return self._view

    def screenshot(self, marks: bool = False) -> bytes:
        """The window as PNG; `marks` draws the ids of the elements over it (set-of-marks, arXiv:2310.11441)."""
        self._resume()
        session, view = self._open, self.view
        if not marks:
            return self._run(screenshot(session.tab))
        return self._run(marked(session.tab, view))

    @property
    def blocked(self) -> Sequence[str]:
        """Addresses outside of the task's sites that pages asked for in this episode."""
        return () if self._session is None else tuple(self._session.route.blocked)

    def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """See `TaskEnv`."""
        self._pending = None
        self._end_recording()
        observation, info = super().reset(seed=seed, options=options)
        self._begin_recording()
        return observation, info | self._image()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See `TaskEnv`; `info["irreversible"]`: something behind the pages may have changed."""
        self._resume()
        before = self._unsafe
        result = super().step(action)
        self._actions.append(action)
        result[4]["irreversible"] = self._unsafe > before
        result[4].update(self._image())
        if self._recording is not None:
            self._run(self._recording.frame())
            if result[2] or result[3]:
                self._end_recording()
        return result

    def render(self) -> Any:
        """The window as an array of shape (height, width, 3), uint8, with render_mode "rgb_array"; else None."""
        return pixels(self.screenshot()) if self.render_mode == "rgb_array" else None

    def score(self) -> Score:
        """See `TaskEnv`."""
        self._resume()
        return super().score()

    def solution(self) -> Sequence[str]:
        """The task's own solution, or the target's script, played in another environment to find its actions."""
        task = self.task
        if "gold" in task.data:
            return tuple(task.data["gold"])
        other = type(self)(max_chars=self._max_chars)
        try:
            other.reset(seed=0, options={"task": task})
            return other._solve()
        finally:
            other.close()

    def cheats(self) -> Mapping[str, Sequence[str]]:
        """What the target knows of."""
        return self._aim.cheats(self.task)

    def close(self) -> None:
        """Give the browser context back."""
        self._end_recording()
        session, self._session = self._session, None
        if session is not None:
            host().run(host().release(session), RESET_S)

    # The world.

    def _image(self) -> dict[str, bytes]:
        return {} if self._images == "none" else {"image": self.screenshot(marks=self._images == "marked")}

    def _begin_recording(self) -> None:
        if self._record is not None:
            self._recording = Recording(self._record, self.task.id, self._open)
            self._run(self._recording.begin())

    def _end_recording(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            host().run(recording.end(), RESET_S)

    def _begin(self, task: Task) -> str:
        self._actions, self._answer, self._unsafe, self._view = [], None, 0, None
        target = self._target = target_of(task)
        self._session, (goal, self._view) = self._arrive(task, target, lambda s: target.begin(s, task))
        instruction = task.instruction.replace("{goal}", goal) or goal
        return f"{instruction}\n{self._shown(self._view)}"

    def _arrive(
        self, task: Task, target: WebTarget, go: Callable[[Session], Awaitable[T]]
    ) -> tuple[Session, T]:
        """A session for the sites of `target`, and what `go` in it returned. Raises EnvSetupError."""
        try:
            return host().run(self._lease(target, go), START_S)
        except ToolError as error:
            raise EnvSetupError(f"task {task.id!r} cannot begin: {error}") from error

    async def _lease(self, target: WebTarget, go: Callable[[Session], Awaitable[T]]) -> tuple[Session, T]:
        last, self._session = self._session, None
        if last is not None:
            await host().release(last)
        session = await host().lease(target.warm, self)
        try:
            await session.clear(target.sites, target.viewport, target.ignore)
            return session, await go(session)
        except BaseException:
            session.broken = True
            await host().release(session)
            raise

    def _do(self, act: Callable[[Session], Awaitable[Any]]) -> str:
        """Act, let time pass, look. What the agent got wrong is told with the page as it is."""
        return self._run(self._act(act))

    async def _act(self, act: Callable[[Session], Awaitable[Any]]) -> str:
        session, error = self._open, ""
        try:
            await act(session)
        except ToolError as wrong:
            error = f"error: {str(wrong)[:400]}\n"
        done, view = await asyncio.gather(self._aim.after_step(session), session.view())
        if done:
            self.finish()
        self._view, self._unsafe = view, session.route.unsafe
        return error + self._shown(view)

    def _on_text(self, text: str) -> str:
        name, arguments = parse_text(text, self.toolbox)
        checked = self.toolbox[name].check(arguments)
        shown: str = getattr(self, name)(**checked)
        return shown

    def _anchor(self) -> str:
        return self._pending.anchor if self._pending else self.view.anchor

    def _state(self) -> str:
        if self._pending:
            return self._pending.state
        ids = [(e.id, e.role) for e in self.view.elements]
        parts = repr((self.view.anchor, self.view.scroll, ids, self._aim.state(), self._answer))
        return hashlib.sha256(parts.encode()).hexdigest()

    def _score(self) -> Score:
        return self._run(self._aim.grade(self._open, self.task, self._answer))

    def _freeze(self) -> Frozen:
        if self._pending:
            return self._pending
        return Frozen(self.task, tuple(self._actions), self._anchor(), self._state())

    def _thaw(self, world: Frozen) -> None:
        self._pending = world
        self._actions = list(world.actions)

    def _resume(self) -> None:
        """Play again what leads to a restored state, when it is needed. Raises EnvSetupError where it does not."""
        wanted, self._pending = self._pending, None
        if wanted is None:
            return
        other = type(self)(max_chars=self._max_chars, header=self._header)
        other._play_again(wanted)
        self.close()
        self._session, self._target, self._view = other._session, other._target, other._view
        self._answer, self._unsafe = other._answer, other._unsafe
        self._actions = list(wanted.actions)
        other._session = None
        host().run(host().hand_over(self._open, self), RESET_S)
        self._begin_recording()

    def _play_again(self, wanted: Frozen) -> None:
        self.reset(seed=0, options={"task": wanted.seed_task})
        for action in wanted.actions:
            TaskEnv.step(self, action)
        if (self._anchor(), self._state()) != (wanted.anchor, wanted.state):
            self.close()
            raise EnvSetupError(f"playing {len(wanted.actions)} actions again did not lead to the same state")

    def _solve(self) -> Sequence[str]:
        actions: list[str] = []
        script = self._aim.solve(self.task, self.view)
        try:
            action = next(script)
            while True:
                actions.append(action)
                if any(self.step(action)[2:4]):
                    return actions
                action = script.send(self.view)
        except StopIteration:
            return actions

    @property
    def _open(self) -> Session:
        if self._session is None:
            raise SandboxError("this environment was closed: call reset()")
        return self._session

    @property
    def _aim(self) -> WebTarget:
        if self._target is None:
            raise EnvSetupError("call reset() before using this environment")
        return self._target

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """In the browser's event loop; what fails there costs the session."""
        try:
            return host().run(work, self.task.budget.command_s)
        except Exception:
            if self._session is not None:
                self._session.broken = True
            raise

    def _shown(self, view: View) -> str:
        return view.text(self._max_chars, self._header)

    def __getstate__(self) -> Mapping[str, Any]:
        kept = self.__dict__ | {"_session": None, "_target": None, "_view": None, "_recording": None}
        return kept | ({"_pending": self._freeze()} if self._episode is not None and self._view else {})
