"""Actions of palestra/Web-v0 as JSON, for solutions that are written down with a task."""

from __future__ import annotations

import json
from typing import Any


def act(tool: str, /, **arguments: Any) -> str:
    """One tool call."""
    return json.dumps({"name": tool, "arguments": arguments})


def named(role: str, name: str, nth: int = 1) -> str:
    """An element by role and name, the `nth` of those that share them."""
    return f"{role} {json.dumps(name, ensure_ascii=False)}" + (f" #{nth}" if nth > 1 else "")


def click(role: str, name: str, nth: int = 1) -> str:
    """Click an element."""
    return act("click", target=named(role, name, nth))


def fill(label: str, text: str, role: str = "textbox") -> str:
    """Fill in a field."""
    return act("fill", target=named(role, label), text=text)


def choose(label: str, option: str) -> str:
    """Select an option of a list."""
    return act("select", target=named("combobox", label), options=option)


def goto(url: str) -> str:
    """Open an address."""
    return act("goto", url=url)


def done(answer: str = "") -> str:
    """Hand in."""
    return act("submit", answer=answer)
