"""A web episode in the middle: the actions that lead there and, where that is all of it, what it consists of.

Playing the actions again always works. It can be left out on a page without scripts, in the only tab, of an application
whose whole state can be saved: what lies behind the pages, the cookies and the history are all that there is besides
what a look shows, and the look is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from palestra.tasks.task import Task

if TYPE_CHECKING:
    from palestra.envs.web.session import Session


class Behind(Protocol):
    """What lies behind the pages."""

    def save(self) -> bytes:
        """All of it."""
        ...

    def load(self, state: bytes) -> None:
        """Put it back."""
        ...


@dataclass(frozen=True, slots=True)
class Kept:
    """A state to go to without its actions. `current` counts in `history`, the addresses."""

    behind: bytes
    cookies: tuple[Mapping[str, Any], ...]
    history: tuple[str, ...]
    current: int


@dataclass(frozen=True, slots=True)
class Frozen:
    """How to get to a state again, and how to tell that one is there."""

    seed_task: Task
    actions: tuple[str, ...]
    anchor: str
    state: str
    answer: str | None = None
    unsafe: int = 0
    kept: Kept | None = None


async def keep(session: Session, behind: Behind) -> Kept | None:
    """The state as it is; None where more belongs to it than can be kept."""
    found = await session.tab.cdp.send("Page.getNavigationHistory")
    addresses = [entry["url"] for entry in found["entries"]]
    start = addresses[0] == "about:blank"
    if len(session.tabs) > 1 or not all(session.may_visit(a) for a in addresses[start:]):
        return None
    if not await session.tab.ask("bare"):
        return None
    cookies = tuple(await session.context.cookies())
    return Kept(behind.save(), cookies, tuple(addresses[start:]), found["currentIndex"] - start)


async def put_back(session: Session, behind: Behind, kept: Kept) -> None:
    """Bring the state about in a session of the same sites: visit the pages of its history once more."""
    await session.forget()
    for address in kept.history:
        await _load(session, behind, kept)
        await session.goto(address)
    if kept.current < len(kept.history) - 1:
        found = await session.tab.cdp.send("Page.getNavigationHistory")
        await session.tab.travel(found["entries"][kept.current - len(kept.history)]["id"])
    await _load(session, behind, kept)


async def _load(session: Session, behind: Behind, kept: Kept) -> None:
    """What a visit has changed is put right."""
    behind.load(kept.behind)
    await session.context.clear_cookies()
    if kept.cookies:
        await session.context.add_cookies([dict(cookie) for cookie in kept.cookies])  # type: ignore[misc]
