"""One episode's browser context: its tabs, and what pages try besides showing themselves.

Dialogs are answered at once (an alert, a confirmation and a prompt are accepted, the last with its default) and told
to the agent. New windows become tabs, up to `MAX_TABS`. Downloads are kept from the disk: they are cancelled and
noted. The network is the gateway's. Permissions are not granted.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from palestra.envs.errors import SandboxError
from palestra.envs.tools import ToolError
from palestra.envs.web.gateway import App, Route
from palestra.envs.web.observation import View
from palestra.envs.web.tab import Tab, script

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Dialog, Download, Page

MAX_TABS = 8
MAX_DIALOGS = 20
MAX_NOTICES = 10
CLOSE_S = 3.0
BLANK = "about:blank"
SETTINGS: dict[str, Any] = {
    "maxNodes": 400,
    "maxName": 200,
    "maxOptions": 30,
    "ignore": "",
    "pictureMs": 5000,
}


class Session:
    """A browser context with its port at the gateway. Make one with `open`."""

    def __init__(self, context: BrowserContext, route: Route) -> None:
        self.context, self.route = context, route
        self.tabs: list[Tab] = []
        self.current = 0
        self.broken = False
        self.warm = ""
        self.notices: list[str] = []
        self.settings = dict(SETTINGS)
        self._dialogs = 0
        self._viewport = (0, 0)
        self._origins: set[str] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._outbox: Path | None = None

    @classmethod
    async def open(cls, browser: Browser, route: Route) -> Session:
        """A new context whose only way to the network is the gateway's port `route`."""
        context = await browser.new_context(
            proxy={"server": f"http://127.0.0.1:{route.port}"},
            accept_downloads=False,
            service_workers="block",
            locale="en-US",
            timezone_id="UTC",
            reduced_motion="reduce",
            device_scale_factor=1,
        )
        session = cls(context, route)
        await context.add_init_script(script("clock.js"))
        context.on("page", session._page_opened)
        context.on("dialog", session._answer)
        page = await context.new_page()
        await session._adopt(page)
        return session

    @property
    def usable(self) -> bool:
        """Whether another episode can be played here."""
        browser = self.context.browser
        crashed = self.broken or any(tab.crashed for tab in self.tabs)
        return not crashed and bool(self.tabs) and browser is not None and browser.is_connected()

    @property
    def tab(self) -> Tab:
        """The tab in front. Raises SandboxError where its page crashed."""
        if not self.usable:
            self.broken = True
            raise SandboxError("the page crashed")
        return self.tabs[self.current]

    async def clear(self, sites: Mapping[str, App], viewport: tuple[int, int], ignore: str = "") -> None:
        """Make ready for an episode on `sites`; of the last one nothing is left but, on static sites, the page."""
        for tab in self.tabs[1:]:
            await tab.page.close()
        del self.tabs[1:]
        self.current, self._dialogs = 0, 0
        self._empty_outbox()
        self.notices.clear()
        self.route.blocked.clear()
        self.route.unsafe = 0
        if ignore != self.settings["ignore"]:
            self.settings["ignore"] = ignore
            self.tab._eyes = None
        if viewport != self._viewport:
            await self.tab.page.set_viewport_size({"width": viewport[0], "height": viewport[1]})
            self._viewport = viewport
        self.route.sites = sites

    async def forget(self) -> None:
        """Remove what pages may have kept: cookies, storage of every kind, caches, workers, history, window.name."""
        self.warm = ""
        tab = self.tab
        if tab.page.url != BLANK:
            await tab.evaluate("try { sessionStorage.clear(); window.name = '' } catch (error) {}")
        await tab.goto(BLANK)
        clearing = [
            tab.cdp.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
            for origin in self._origins
        ]
        await asyncio.gather(self.context.clear_cookies(), *clearing)
        await tab.cdp.send("Page.resetNavigationHistory")
        self._origins.clear()

    async def goto(self, url: str) -> None:
        """Open `url` in the tab in front. Raises ToolError where it is not on a site of the episode."""
        await self.tab.goto(self.allowed(url))

    def allowed(self, url: str) -> str:
        """`url`, if it is http and on one of the sites. Raises ToolError."""
        parts = urlsplit(url if "://" in url or ":" in url.partition("/")[0] else f"http://{url}")
        if parts.scheme != "http" or parts.netloc not in self.route.sites:
            origins = ", ".join(f"http://{host}" for host in self.route.sites)
            raise ToolError(f"{url[:200]!r} is not on the sites of this task: {origins}")
        return parts.geturl()

    async def view(self, fresh: bool = False) -> View:
        """A look at the tab in front, once it has loaded. `fresh`: the ids of elements begin anew."""
        view = await self.tab.view(fresh)
        while self._opening:
            await asyncio.gather(*self._opening)
            view = await self.tab.view()
        self._note_origins()
        tabs = tuple(view.url if t is self.tab else t.page.url for t in self.tabs)
        notices, self.notices = tuple(self.notices), []
        return replace(view, tabs=tabs, tab=self.current, notices=notices)

    async def open_tab(self, url: str) -> None:
        """A new tab in front, at `url`."""
        allowed = self.allowed(url)
        if len(self.tabs) >= MAX_TABS:
            raise ToolError(f"there are {MAX_TABS} tabs already: close one")
        page = await self.context.new_page()
        await asyncio.gather(*self._opening)
        self.current = next(i for i, tab in enumerate(self.tabs) if tab.page is page)
        await self.tabs[self.current].goto(allowed)

    async def close_tab(self) -> None:
        """Close the tab in front; the one before it comes to the front."""
        if len(self.tabs) == 1:
            raise ToolError("this is the only tab: it cannot be closed")
        closed = self.tabs.pop(self.current)
        await closed.page.close()
        self.current = max(0, self.current - 1)
        await self.tab.page.bring_to_front()

    async def switch_tab(self, number: int) -> None:
        """Bring tab `number` (from 1) to the front."""
        if not 1 <= number <= len(self.tabs):
            raise ToolError(f"there is no tab {number}; there are {len(self.tabs)}")
        self.current = number - 1
        await self.tab.page.bring_to_front()

    async def aclose(self) -> None:
        """Close the context, which may take no notice of it."""
        self.broken = True
        self._empty_outbox()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await self.context.close()

    @property
    def outbox(self) -> Path:
        """A directory for files that the agent uploads; it is emptied with every episode."""
        if self._outbox is None:
            self._outbox = Path(tempfile.mkdtemp(prefix="palestra-upload-"))
            weakref.finalize(self, shutil.rmtree, self._outbox, ignore_errors=True)
        return self._outbox

    def note(self, what: str) -> None:
        """Tell the agent with the next look."""
        if len(self.notices) < MAX_NOTICES:
            self.notices.append(what)

    def _empty_outbox(self) -> None:
        if self._outbox is not None:
            shutil.rmtree(self._outbox, ignore_errors=True)
            self._outbox = None

    def _note_origins(self) -> None:
        for tab in self.tabs:
            parts = urlsplit(tab.page.url)
            if parts.netloc:
                self._origins.add(f"{parts.scheme}://{parts.netloc}")

    async def _adopt(self, page: Page) -> None:
        tab = await Tab.open(page, self.settings)
        page.on("download", self._downloaded)
        page.on("close", self._page_closed)
        if tab not in self.tabs:
            self.tabs.append(tab)

    def _page_opened(self, page: Page) -> None:
        """A window that a page opened, or that we did."""
        if not self.tabs and not self._opening:  # the first one is adopted by `open`
            return
        full = len(self.tabs) + len(self._opening) >= MAX_TABS
        task = asyncio.ensure_future(self._refuse_window(page) if full else self._open_window(page))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _refuse_window(self, page: Page) -> None:
        self.note("a new window was refused: there are too many tabs")
        with contextlib.suppress(Exception):
            await page.close()

    async def _open_window(self, page: Page) -> None:
        with contextlib.suppress(Exception):  # it may be closed again already
            await self._adopt(page)
            if self._viewport[0]:
                await page.set_viewport_size({"width": self._viewport[0], "height": self._viewport[1]})

    def _page_closed(self, page: Page) -> None:
        """A page closed itself."""
        found = [i for i, tab in enumerate(self.tabs) if tab.page is page]
        if found:
            del self.tabs[found[0]]
            self.current = max(0, min(self.current - (found[0] <= self.current), len(self.tabs) - 1))

    async def _answer(self, dialog: Dialog) -> None:
        self._dialogs += 1
        self.note(f"dialog: {dialog.type} {dialog.message[:200]!r} was accepted")
        with contextlib.suppress(Exception):
            if self._dialogs > MAX_DIALOGS:
                await dialog.dismiss()
            elif dialog.type == "prompt":
                await dialog.accept(dialog.default_value)
            else:
                await dialog.accept()

    async def _downloaded(self, download: Download) -> None:
        self.note(f"download: {download.suggested_filename[:100]!r} was not saved")
        with contextlib.suppress(Exception):
            await download.cancel()
