"""What an agent can do, as tools: `hands.py` in the form of `palestra.envs.tools`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from palestra.envs.env import TaskEnv
from palestra.envs.tools import ToolError, tool
from palestra.envs.web import hands
from palestra.envs.web.session import Session

MAX_WAIT_MS = 10_000


class WebTools(TaskEnv):
    """The tools of `WebEnv`, which says what happens around each of them."""

    _answer: str | None

    def _do(self, act: Callable[[Session], Awaitable[Any]]) -> str:
        """Act, let time pass, and say what is seen then."""
        raise NotImplementedError

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


def _optional(target: str | int | None) -> str | None:
    return None if target is None else str(target)
