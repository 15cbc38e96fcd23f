"""What an agent can do to the page in front: each action finds its element, acts with real input, and returns.

A target is written as an element's id (12), as a role with a name (`button "Save"`, `link "Edit" #2` for the second
of them), or as coordinates in the window ("120,45").
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from palestra.envs.tools import ToolError
from palestra.envs.web.tab import Tab, Target

if TYPE_CHECKING:
    from palestra.envs.web.session import Session

_COORDINATES = re.compile(r"\s*(-?\d+(?:\.\d+)?)\s*,\s*(-?\d+(?:\.\d+)?)\s*")
_NAMED = re.compile(r'\s*(\w+)\s+("(?:[^"\\]|\\.)*")\s*(?:#(\d+))?\s*')
_FILE_NAME = re.compile(r"\w[\w .-]{0,99}")
_DRAG_STEPS = 6
MAX_TYPED = 2000
MAX_UPLOAD = 100_000

Button = Literal["left", "right", "middle"]
Point = tuple[float, float]


def parse_target(text: str) -> Target | Point:
    """What `text` names. Raises ToolError."""
    stripped = text.strip().strip("[]")
    if stripped.isdigit():
        return int(stripped)
    if match := _COORDINATES.fullmatch(text):
        return float(match[1]), float(match[2])
    if match := _NAMED.fullmatch(text):
        try:
            return [match[1], json.loads(match[2]), int(match[3] or 1)]
        except json.JSONDecodeError:
            pass
    raise ToolError(
        f'{text[:100]!r} names no element: write an id like 12, a role and name like button "Save", or x,y'
    )


def element_of(text: str) -> Target:
    """As `parse_target`, without coordinates."""
    target = parse_target(text)
    if isinstance(target, tuple):
        raise ToolError(f"this needs an element, not the coordinates {text!r}")
    return target


async def point(tab: Tab, text: str) -> Point:
    """Where the mouse has to go for a target. Raises ToolError."""
    target = parse_target(text)
    if isinstance(target, tuple):
        size = tab.page.viewport_size or {"width": 0, "height": 0}
        if not (0 <= target[0] < size["width"] and 0 <= target[1] < size["height"]):
            raise ToolError(f"{text!r} is outside of the window of {size['width']}x{size['height']} pixels")
        return target
    found = await tab.ask("locate", target)
    return found["x"], found["y"]


async def click(tab: Tab, target: str, button: Button = "left", count: int = 1) -> None:
    """Move there and click."""
    x, y = await point(tab, target)
    await tab.page.mouse.click(x, y, button=button, click_count=count)


async def hover(tab: Tab, target: str) -> None:
    """Move there."""
    await tab.page.mouse.move(*await point(tab, target))


async def fill(tab: Tab, target: str, text: str) -> None:
    """Replace the text of a field."""
    if len(text) > MAX_TYPED:
        raise ToolError(f"at most {MAX_TYPED} characters at once, this has {len(text)}")
    found = await tab.ask("focus", element_of(target), text, True)
    if not found["set"]:
        await (tab.page.keyboard.insert_text(text) if text else tab.page.keyboard.press("Delete"))


async def type_text(tab: Tab, text: str, target: str | None) -> None:
    """Press the keys of `text`, into a field or where the focus is."""
    if len(text) > MAX_TYPED:
        raise ToolError(f"at most {MAX_TYPED} characters at once, this has {len(text)}")
    if target is not None:
        await tab.ask("focus", element_of(target), None, False)
    await tab.page.keyboard.type(text)


async def press(tab: Tab, key: str, target: str | None) -> None:
    """Press a key or a chord such as Control+a."""
    if target is not None:
        await tab.ask("focus", element_of(target), None, False)
    try:
        await tab.page.keyboard.press(key)
    except Exception as error:
        if "Unknown key" in str(error):
            raise ToolError(
                f"there is no key {key[:40]!r}; for example Enter, Tab, ArrowDown, Control+a"
            ) from None
        raise


async def select(tab: Tab, target: str, options: Sequence[str]) -> None:
    """Choose options of a list by their text or value."""
    await tab.ask("choose", element_of(target), list(options))


async def drag(tab: Tab, source: str, destination: str) -> None:
    """Press the mouse at one place and release it at another."""
    mouse = tab.page.mouse
    start = await point(tab, source)
    end = await point(tab, destination)
    await tab.ask("drag", *start, *end)
    await mouse.move(*start)
    await mouse.down()
    try:
        await mouse.move(*end, steps=_DRAG_STEPS)
        await tab.advance(50)
    finally:
        await mouse.up()


async def scroll(tab: Tab, pixels: Point, target: str | None) -> None:
    """Scroll the page or what contains an element."""
    await tab.ask("scroll", element_of(target) if target is not None else None, *pixels)


async def highlight(tab: Tab, target: str, part: str | None) -> None:
    """Select text with the mouse."""
    await tab.ask("highlight", element_of(target), part)


async def upload(session: Session, target: str, name: str, content: str) -> None:
    """Put a text file into a file field. The file lies in a directory of the session, which goes with it."""
    tab, element = session.tab, element_of(target)
    if not _FILE_NAME.fullmatch(name):
        raise ToolError(f"{name[:100]!r} is not a plain file name")
    path = session.outbox / name
    path.write_text(content[:MAX_UPLOAD])
    try:
        files = {"files": [str(path)], "objectId": await tab.element(element)}
        await tab.cdp.send("DOM.setFileInputFiles", files)
    except ToolError:
        raise
    except Exception as error:
        if "not a file input" in str(error).lower():
            raise ToolError(f"element {target} takes no files") from None
        raise


async def history(session: Session, step: Literal[-1, 1]) -> None:
    """Go back or forward."""
    tab = session.tab
    entries = await tab.cdp.send("Page.getNavigationHistory")
    index = entries["currentIndex"] + step
    if not 0 <= index < len(entries["entries"]) or entries["entries"][index]["url"] == "about:blank":
        raise ToolError("there is no page to go back to" if step < 0 else "there is no page to go forward to")
    await tab.travel(entries["entries"][index]["id"])
