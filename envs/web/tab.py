"""One page: a look at it, and the mouse and keyboard on it.

Looking runs `observe.js` in an isolated world through the DevTools protocol: one round trip, and nothing that the
page can see or change. Time in the page stands still but for `advance` (`clock.js`).
"""

from __future__ import annotations

import asyncio
import functools
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from palestra.envs.errors import SandboxError
from palestra.envs.tools import ToolError
from palestra.envs.web.observation import View

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

Target = int | list[Any]
"""An element's id, or [role, name, n] for the n-th with this role and name."""

STEP_MS = 500
"""What passes in the page in each step."""
LOAD_S = 8.0
_WORLD = "palestra"
_GONE = (
    "Cannot find context",
    "Execution context was destroyed",
    "Inspected target navigated",
    "uniqueContextId",
)


@functools.cache
def script(name: str) -> str:
    """A script of this package."""
    return (files("palestra.envs.web") / name).read_text()


class Tab:
    """A page with its DevTools session. Make one with `open`."""

    def __init__(self, page: Page, cdp: CDPSession, settings: dict[str, Any]) -> None:
        self.page, self.cdp, self.settings = page, cdp, settings
        self._frame = ""
        self._eyes: str | None = None
        self._loading = asyncio.Event()
        self._loaded = asyncio.Event()
        self._loaded.set()
        self.crashed = False
        self.main: str | None = None

    @classmethod
    async def open(cls, page: Page, settings: dict[str, Any]) -> Tab:
        """Attach to `page`."""
        cdp = await page.context.new_cdp_session(page)
        tab = cls(page, cdp, settings)
        page.on("crash", tab._crashed)
        cdp.on("Page.frameStartedLoading", tab._started)
        cdp.on("Page.frameStoppedLoading", tab._stopped)
        cdp.on("Page.frameNavigated", tab._navigated)
        cdp.on("Page.navigatedWithinDocument", tab._stopped)
        await cdp.send("Page.enable")
        tree = await cdp.send("Page.getFrameTree")
        tab._frame = tree["frameTree"]["frame"]["id"]
        return tab

    # Looking.

    async def view(self, fresh: bool = False) -> View:
        """The page as it is, once what is loading has loaded. `fresh`: the ids of its elements begin anew."""
        for _ in range(10):
            await self._wait()
            found = await self._look("settled", fresh)
            if found is not None and not self.loading:
                return View.of(found)
        raise SandboxError(f"{self.page.url} does not come to rest")

    async def ask(self, function: str, *arguments: Any) -> Any:
        """The result of a function of `observe.js`. Raises ToolError where it is {"error": ...}."""
        await self._wait()
        found = await self._look(function, *arguments)
        if found is None:
            raise ToolError("the page changed in the meantime")
        if isinstance(found, dict) and "error" in found:
            raise ToolError(found["error"])
        return found

    async def advance(self, milliseconds: int) -> None:
        """Let time pass in the page."""
        expression = f"window.__palestraClock && __palestraClock.advance({milliseconds})"
        await self.evaluate(expression)

    async def evaluate(self, expression: str) -> Any:
        """An expression of ours, in the page's own world. Never text of an agent. None where the page went away."""
        try:
            reply = await self._send(
                "Runtime.evaluate", {"expression": expression, "returnByValue": True, "silent": True}
            )
        except Exception as error:
            if _is_gone(error):
                return None
            raise
        return reply["result"].get("value")

    @property
    def loading(self) -> bool:
        """Whether the page is on its way to another one."""
        return not self._loaded.is_set()

    async def _look(self, function: str, *arguments: Any) -> Any:
        """The result, or None where the page went away under it."""
        try:
            eyes = self._eyes or await self._open_eyes()
            reply = await self._send(
                "Runtime.callFunctionOn",
                {
                    "objectId": eyes,
                    "functionDeclaration": "function(name, ...rest) { return this[name](...rest) }",
                    "arguments": [{"value": a} for a in (function, *arguments)],
                    "returnByValue": True,
                    "awaitPromise": True,
                    "userGesture": True,
                },
            )
        except Exception as error:
            if _is_gone(error):
                self._eyes = None
                return None
            raise
        if "exceptionDetails" in reply:
            raise SandboxError(f"looking at the page failed: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    async def element(self, target: Target) -> str:
        """The DevTools object of an element, for what only the browser can do with it."""
        await self.ask("box", target)
        eyes = self._eyes or await self._open_eyes()
        reply = await self.cdp.send(
            "Runtime.callFunctionOn",
            {
                "objectId": eyes,
                "functionDeclaration": "function(target) { return this.element(target) }",
                "arguments": [{"value": target}],
            },
        )
        if "objectId" not in reply["result"]:
            raise ToolError(f"there is no element [{target}] on this page")
        return str(reply["result"]["objectId"])

    async def _open_eyes(self) -> str:
        """The object of `observe.js` in a fresh isolated world of the document that is shown."""
        world = await self.cdp.send("Page.createIsolatedWorld", {"frameId": self._frame, "worldName": _WORLD})
        reply = await self.cdp.send(
            "Runtime.callFunctionOn",
            {
                "executionContextId": world["executionContextId"],
                "functionDeclaration": f"function(settings) {{ return ({script('observe.js')})(settings) }}",
                "arguments": [{"value": self.settings}],
            },
        )
        if "objectId" not in reply["result"]:
            raise SandboxError(f"the page cannot be looked at: {reply}")
        self._eyes = str(reply["result"]["objectId"])
        return self._eyes

    async def _send(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """A DevTools command. The browser holds it back while a new document is awaited: not for ever."""
        sent = asyncio.ensure_future(self.cdp.send(method, parameters))
        sent.add_done_callback(lambda done: done.cancelled() or done.exception())
        answered, _ = await asyncio.wait({sent}, timeout=LOAD_S)
        if not answered:
            await self.cdp.send("Page.stopLoading")
            self._loaded.set()
        reply: dict[str, Any] = await sent
        return reply

    async def park_mouse(self) -> None:
        """The mouse in the corner, where no episode has left it. A move alone would wait for the next frame."""
        corner = {"x": 0, "y": 0, "button": "none"}
        kinds = ("mouseMoved", "mouseReleased")
        await asyncio.gather(
            *(self.cdp.send("Input.dispatchMouseEvent", {**corner, "type": k}) for k in kinds)
        )

    # Loading.

    async def goto(self, url: str) -> None:
        """Go to `url`, whose origin was checked, and wait until it has loaded."""
        self._loaded.clear()
        reply = await self.cdp.send("Page.navigate", {"url": url})
        if reply.get("errorText") or not reply.get("loaderId"):
            self._loaded.set()
        if reply.get("errorText"):
            raise ToolError(f"{url} cannot be opened: {reply['errorText']}")
        await self._wait()

    async def travel(self, entry: int) -> None:
        """Go to an entry of the history."""
        self._loaded.clear()
        await self.cdp.send("Page.navigateToHistoryEntry", {"entryId": entry})
        await self._wait()

    async def _wait(self) -> None:
        """Until nothing is loading; what takes longer than LOAD_S is stopped."""
        if self._loaded.is_set():
            return
        try:
            await asyncio.wait_for(self._loaded.wait(), LOAD_S)
        except TimeoutError:
            await self.cdp.send("Page.stopLoading")
            self._loaded.set()

    def _crashed(self, _: object) -> None:
        self.crashed = True
        self._loaded.set()

    def _started(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self._frame:
            self._loaded.clear()

    def _stopped(self, event: dict[str, Any]) -> None:
        if event["frameId"] == self._frame:
            self._loaded.set()

    def _navigated(self, event: dict[str, Any]) -> None:
        if event["frame"]["id"] == self._frame or not event["frame"].get("parentId"):
            self._frame, self._eyes, self.main = event["frame"]["id"], None, None


def _is_gone(error: Exception) -> bool:
    """Whether a DevTools command failed because the document it was for is no longer there."""
    text = str(error)
    return (
        any(sign in text for sign in _GONE) or "Cannot find object" in text or "Could not find object" in text
    )
