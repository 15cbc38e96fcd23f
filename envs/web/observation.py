"""What an agent sees of a page, as text, and what of it names the state.

    tab 1 of 2: Orders, http://shop.test/orders
    [3] textbox "Search" value="lamp" focused
    [4] button "Go"
    row
      [9] cell "1023"

Indentation shows nesting; a line without an id is text that cannot be acted upon by id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Element:
    """One line of the accessibility tree. `id` is 0 for text between elements."""

    depth: int
    id: int
    role: str
    name: str
    states: tuple[str, ...]
    value: str | None

    @property
    def line(self) -> str:
        """The element as the agent reads it."""
        parts = [f"[{self.id}]"] if self.id else []
        parts += [self.role]
        parts += [json.dumps(self.name, ensure_ascii=False)] if self.name else []
        parts += [f"value={json.dumps(self.value, ensure_ascii=False)}"] if self.value else []
        return "  " * self.depth + " ".join([*parts, *self.states])


@dataclass(frozen=True, slots=True)
class View:
    """One look at the page of a tab. `scroll`: pixels scrolled, height of the page, height of the window."""

    url: str
    title: str
    elements: tuple[Element, ...]
    focused: int
    scroll: tuple[int, int, int]
    complete: bool
    tabs: tuple[str, ...] = ()
    tab: int = 0
    notices: tuple[str, ...] = ()
    """What happened besides: dialogs, downloads, windows and addresses that were refused."""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> View:
        """From what `observe.js` returns."""
        elements = tuple(Element(d, i, r, n, tuple(s), v) for d, i, r, n, s, v in found["nodes"])
        scroll: tuple[int, int, int] = tuple(found["scroll"])
        return cls(found["url"], found["title"], elements, found["focused"], scroll, found["complete"])

    def text(self, max_chars: int, header: bool = True) -> str:
        """For the agent; cut after a whole line where it is longer than `max_chars`."""
        lines = [*self.notices, *(self._header() if header else ())]
        used = sum(map(len, lines))
        for number, element in enumerate(self.elements):
            used += len(element.line) + 1
            if used > max_chars:
                return "\n".join([*lines, f"... {len(self.elements) - number} more elements"])
            lines.append(element.line)
        return "\n".join(lines if self.complete else [*lines, "... more elements"])

    def find(self, role: str, name: str) -> Element | None:
        """The first element of this role and name."""
        return next((e for e in self.elements if e.role == role and e.name == name and e.id), None)

    @property
    def anchor(self) -> str:
        """Digest of URL, tabs, and the tree with the state of its forms, without ids and scrolling."""
        parts = [self.url, self.tabs, [(e.depth, e.role, e.name, e.states, e.value) for e in self.elements]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _header(self) -> Iterator[str]:
        yield f"tab {self.tab + 1} of {len(self.tabs)}: {self.title or 'untitled'}, {self.url}"
        others = [f"tab {i + 1}: {url}" for i, url in enumerate(self.tabs) if i != self.tab]
        yield from others
        top, height, window = self.scroll
        if height > window:
            yield f"scrolled {top} of {height - window} pixels"


def elements_by_role(view: View, roles: Sequence[str]) -> list[Element]:
    """The elements of some roles, in the order of the page."""
    return [e for e in view.elements if e.role in roles and e.id]
