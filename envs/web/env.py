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
import shlex
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvSetupError, SandboxError
from palestra.envs.tools import ToolError, tool
from palestra.envs.web import hands
from palestra.envs.web.host import START_S, host
from palestra.envs.web.observation import View
from palestra.envs.web.pictures import marked, screenshot
from palestra.envs.web.session import Session
from palestra.envs.web.target import WebTarget
from palestra.envs.web.targets import target_of
from palestra.tasks.task import Task, TaskSet
from palestra.trajectories.model import Score

T = TypeVar("T")

MAX_WAIT_MS = 10_000
RESET_S = 30.0


@dataclass(frozen=True, slots=True)
class _Frozen:
    """How to get to a state again, and how to tell that one is there."""

    seed_task: Task
    actions: tuple[str, ...]
    anchor: str
    state: str


class WebEnv(TaskEnv):
    """Web pages. See the module."""

    family: ClassVar[str] = "web"

    def __init__(
        self,
        tasks: TaskSet | str | None = None,
        max_chars: int = 6000,
        header: bool = True,
        images: Literal["none", "plain", "marked"] = "none",
    ) -> None:
        """`max_chars` bounds what is shown of a page; `header`: show tab, title, URL and scroll position.

        `images`: what `info["image"]` holds, a screenshot as PNG or one with marks; "none" leaves it out.
        """
        super().__init__(tasks)
        self._images = images
        self._max_chars, self._header = max_chars, header
        self._session: Session | None = None
        self._target: WebTarget | None = None
        self._view: View | None = None
        self._actions: list[str] = []
        self._answer: str | None = None
        self._unsafe = 0
        self._pending: _Frozen | None = None

    # Tools.

    @tool
    def click(self, target: str | int, button: Literal["left", "right", "middle"] = "left") -> str:
        """Click an element: its id, role and name, or x,y."""
        return self._do(lambda s: hands.click(s.tab, str(target), button))

    @tool
    def double_click(self, target: str | int) -> str:
        """Click an element twice."""
        return self._do(lambda s: hands.click(s.tab, str(target), "left", 2))

    @tool
    def hover(self, target: str | int) -> str:
        """Move the mouse over an element."""
        return self._do(lambda s: hands.hover(s.tab, str(target)))

    @tool
    def fill(self, target: str | int, text: str) -> str:
        """Replace the text of a field."""
        return self._do(lambda s: hands.fill(s.tab, str(target), text))

    @tool
    def type(self, text: str, target: str | int | None = None) -> str:
        """Type text key by key, into a field or where the focus is."""
        return self._do(lambda s: hands.type_text(s.tab, text, _optional(target)))

    @tool
    def press(self, key: str, target: str | int | None = None) -> str:
        """Press a key or a chord, for example Enter or Control+a."""
        return self._do(lambda s: hands.press(s.tab, key, _optional(target)))

    @tool
    def select(self, target: str | int, options: str | list[str]) -> str:
        """Select options of a list by their text."""
        wanted = [options] if isinstance(options, str) else options
        return self._do(lambda s: hands.select(s.tab, str(target), wanted))

    @tool
    def highlight(self, target: str | int, text: str | None = None) -> str:
        """Select the text of an element, or a part of it."""
        return self._do(lambda s: hands.highlight(s.tab, str(target), text))

    @tool
    def drag(self, source: str | int, destination: str | int) -> str:
        """Drag from one element or x,y to another."""
        return self._do(lambda s: hands.drag(s.tab, str(source), str(destination)))

    @tool
    def scroll(self, down: int, right: int = 0, target: str | int | None = None) -> str:
        """Scroll the page, or what holds an element, by pixels."""
        return self._do(lambda s: hands.scroll(s.tab, (right, down), _optional(target)))

    @tool
    def upload(self, target: str | int, name: str, content: str) -> str:
        """Put a text file into a file field."""
        return self._do(lambda s: hands.upload(s, str(target), name, content))

    @tool
    def goto(self, url: str) -> str:
        """Open an address on one of the task's sites."""
        return self._do(lambda s: s.goto(url))

    @tool
    def back(self) -> str:
        """Go back to the page before."""
        return self._do(lambda s: hands.history(s, -1))

    @tool
    def forward(self) -> str:
        """Go forward again."""
        return self._do(lambda s: hands.history(s, 1))

    @tool
    def open_tab(self, url: str) -> str:
        """Open an address in a new tab."""
        return self._do(lambda s: s.open_tab(url))

    @tool
    def close_tab(self) -> str:
        """Close this tab."""
        return self._do(lambda s: s.close_tab())

    @tool
    def switch_tab(self, number: int) -> str:
        """Bring another tab to the front; 1 is the first."""
        return self._do(lambda s: s.switch_tab(number))

    @tool
    def wait(self, milliseconds: int = 1000) -> str:
        """Let time pass in the page."""
        if not 0 < milliseconds <= MAX_WAIT_MS:
            raise ToolError(f"wait between 1 and {MAX_WAIT_MS} ms, not {milliseconds}")
        return self._do(lambda s: s.tab.advance(milliseconds))

    @tool
    def submit(self, answer: str) -> str:
        """Say that the task is done; the answer is empty where none was asked for."""
        self._answer = answer
        self.finish()
        return "submitted"

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
        observation, info = super().reset(seed=seed, options=options)
        return observation, info | self._image()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See `TaskEnv`; `info["irreversible"]`: something behind the pages may have changed."""
        self._resume()
        before = self._unsafe
        result = super().step(action)
        self._actions.append(action)
        result[4]["irreversible"] = self._unsafe > before
        result[4].update(self._image())
        return result

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
        session, self._session = self._session, None
        if session is not None:
            host().run(host().release(session), RESET_S)

    # The world.

    def _image(self) -> dict[str, bytes]:
        return {} if self._images == "none" else {"image": self.screenshot(marks=self._images == "marked")}

    def _begin(self, task: Task) -> str:
        last, self._session = self._session, None
        self._actions, self._answer, self._unsafe, self._view = [], None, 0, None
        self._target = target_of(task)
        instruction, view = host().run(self._start(last, self._target, task), START_S)
        self._view = view
        return f"{instruction}\n{self._shown(view)}"

    async def _start(self, last: Session | None, target: WebTarget, task: Task) -> tuple[str, View]:
        if last is not None:
            await host().release(last)
        session = await host().lease(target.warm, self)
        try:
            await session.clear(target.sites, target.viewport, target.ignore)
            instruction, view = await target.begin(session, task)
        except BaseException as error:
            session.broken = True
            await host().release(session)
            if isinstance(error, ToolError):
                raise EnvSetupError(f"task {task.id!r} cannot begin: {error}") from error
            raise
        self._session = session
        return task.instruction.replace("{goal}", instruction) or instruction, view

    def _do(self, act: Any) -> str:
        """Act, let time pass, look. What the agent got wrong is told with the page as it is."""
        return self._run(self._act(act))

    async def _act(self, act: Any) -> str:
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

    def _freeze(self) -> _Frozen:
        return self._pending or _Frozen(self.task, tuple(self._actions), self._anchor(), self._state())

    def _thaw(self, world: _Frozen) -> None:
        self._pending = world
        self._actions = list(world.actions)

    def _resume(self) -> None:
        """Play again what leads to a restored state, when it is needed. Raises EnvSetupError where it does not."""
        wanted, self._pending = self._pending, None
        if wanted is None:
            return
        other = type(self)(max_chars=self._max_chars, header=self._header)
        other.reset(seed=0, options={"task": wanted.seed_task})
        for action in wanted.actions:
            TaskEnv.step(other, action)
        if (other._anchor(), other._state()) != (wanted.anchor, wanted.state):
            other.close()
            raise EnvSetupError(f"playing {len(wanted.actions)} actions again did not lead to the same state")
        self.close()
        self._session, self._target, self._view = other._session, other._target, other._view
        self._answer, self._unsafe = other._answer, other._unsafe
        self._actions = list(wanted.actions)
        other._session = None

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
        kept = self.__dict__ | {"_session": None, "_target": None, "_view": None}
        return kept | ({"_pending": self._freeze()} if self._episode is not None and self._view else {})


def _optional(target: str | int | None) -> str | None:
    return None if target is None else str(target)


def parse_text(text: str, tools: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """(tool, arguments) of an action as text: the tool's name and its arguments in order, quoted where needed.

    Raises ToolError.
    """
    lines = text.strip().splitlines()
    try:
        words = shlex.split(lines[-1]) if lines else []
    except ValueError:
        words = []
    if not words or words[0] not in tools:
        raise ToolError(f"answer with a tool call; the tools are {', '.join(tools)}")
    fields = list(tools[words[0]].arguments.model_fields)
    if len(words) - 1 > len(fields):
        raise ToolError(f"{words[0]} takes at most {len(fields)} arguments: {', '.join(fields)}")
    return words[0], dict(zip(fields, words[1:], strict=False))
