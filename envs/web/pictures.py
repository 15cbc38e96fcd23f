"""Pictures of a page: screenshots, and marks drawn over them outside of the page."""

from __future__ import annotations

import base64
import io
from typing import Any

from palestra.envs.web.observation import View
from palestra.envs.web.tab import Tab

_INK = ((200, 30, 30), (20, 110, 200), (20, 140, 60), (150, 60, 180), (200, 110, 0))
MARKED = frozenset({
    "button", "link", "textbox", "checkbox", "radio", "combobox", "listbox", "option", "slider", "spinbutton",
    "searchbox", "tab", "menuitem", "clickable", "rect", "circle", "polygon", "text", "path", "box", "datepicker",
    "timepicker", "filepicker",
})  # fmt: skip


async def screenshot(tab: Tab) -> bytes:
    """The window as PNG."""
    reply = await tab.cdp.send("Page.captureScreenshot", {"format": "png", "optimizeForSpeed": True})
    return base64.b64decode(reply["data"])


async def marked(tab: Tab, view: View) -> bytes:
    """The window as PNG, with a numbered box around each element of `MARKED` that is in view."""
    picture = await screenshot(tab)
    boxes = []
    for element in view.elements:
        if element.id and element.role in MARKED:
            box = await tab.ask("box", element.id)
            if box is not None and box[2] and box[3]:
                boxes.append((element.id, box))
    return draw(picture, boxes)


def pixels(picture: bytes) -> Any:
    """A PNG as an array of shape (height, width, 3), uint8."""
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))


def draw(picture: bytes, boxes: list[tuple[int, Any]]) -> bytes:
    """`picture` (PNG) with boxes (x, y, width, height) and their numbers."""
    from PIL import Image, ImageDraw

    image = Image.open(io.BytesIO(picture)).convert("RGB")
    pen = ImageDraw.Draw(image)
    for number, (x, y, width, height) in boxes:
        ink = _INK[number % len(_INK)]
        pen.rectangle((x, y, x + width, y + height), outline=ink)
        size = pen.textbbox((x, y), str(number))
        pen.rectangle((x, y, size[2] + 2, size[3] + 1), fill=ink)
        pen.text((x + 1, y), str(number), fill=(255, 255, 255))
    found = io.BytesIO()
    image.save(found, "PNG")
    return found.getvalue()
