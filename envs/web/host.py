"""One browser for the whole process, in a thread of its own, and the pool of its contexts.

Environments are synchronous and live in many threads; Playwright and the browser live in the event loop of one.
`host().run(coroutine)` is the way from one to the other. Contexts are kept and used again (`Session.clear` says
what that means); one that crashed or hangs is thrown away, and a browser that died is started anew for the
sessions to come. After a fork the child gets a browser of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import threading
import weakref
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from palestra.envs.errors import EnvSetupError, SandboxError
from palestra.envs.web.gateway import Gateway

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

    from palestra.envs.web.session import Session

T = TypeVar("T")

MAX_SESSIONS = 64
START_S = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--no-first-run",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    # DeferRendererTasksAfterInput: after each input, a look would wait for the next frame.
    "--disable-features=OptimizationHints,MediaRouter,Translate,AutofillServerCommunication,"
    "SpareRendererForSitePerProcess,DeferRendererTasksAfterInput",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--js-flags=--max-old-space-size=512",
)


def executable() -> str | None:
    """Path of Chromium: PALESTRA_CHROMIUM, else the first of the usual names on PATH."""
    named = os.environ.get("PALESTRA_CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Host:
    """A thread with an event loop, a browser and idle sessions. Get it with `host()`."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="palestra-browser", daemon=True)
        self._thread.start()
        self._idle: list[Session] = []
        self._leased: dict[Session, weakref.ref[object]] = {}
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._gateway: Gateway | None = None
        self._starting = asyncio.Lock()
        self.launches = 0

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """`work`, in the loop, from any other thread.

        Raises SandboxError after `timeout_s`, and for what Playwright raises: here a page or browser that died
        is told apart from nothing else, because what an agent does wrong is found before.
        """
        return asyncio.run_coroutine_threadsafe(_bounded(work, timeout_s), self._loop).result()

    async def lease(self, warm: str, owner: object) -> Session:
        """A session, if possible one whose page shows `warm` already. An owner that is gone has given its back.

        Raises EnvSetupError where too many are in use or there is no browser.
        """
        browser = await self._running()
        for session in [s for s, of in self._leased.items() if of() is None]:
            await self.release(session)
        session = self._pick(warm) or await self._open(browser)
        self._leased[session] = weakref.ref(owner)
        return session

    async def hand_over(self, session: Session, owner: object) -> None:
        """A session that is leased belongs to `owner` from now on."""
        self._leased[session] = weakref.ref(owner)

    def _pick(self, warm: str) -> Session | None:
        """An idle session: one that is warm, else the one that has rested longest."""
        found = next((s for s in self._idle if warm and s.warm == warm and s.usable), None)
        found = found or next((s for s in self._idle if s.usable), None)
        if found is not None:
            self._idle.remove(found)
        return found

    async def _open(self, browser: Browser) -> Session:
        from palestra.envs.web.session import Session

        await self.close_idle()  # none of them is usable
        route = self._gateway.open() if self._gateway else None
        if route is None:
            raise EnvSetupError(f"{MAX_SESSIONS} web episodes are being played: close some of them")
        return await Session.open(browser, route)

    async def release(self, session: Session) -> None:
        """Take a session back; one that broke is closed."""
        self._leased.pop(session, None)
        if session.usable:
            self._idle.append(session)
        else:
            await self.discard(session)

    async def close_idle(self) -> None:
        """Close the sessions that no episode uses."""
        idle, self._idle = self._idle, []
        for session in idle:
            await self.discard(session)

    async def discard(self, session: Session) -> None:
        """Close a session, whatever state it is in."""
        await session.aclose()
        if self._gateway is not None:
            self._gateway.release(session.route)

    async def _running(self) -> Browser:
        async with self._starting:
            if self._browser is None or not self._browser.is_connected():
                self._browser = await self._launch()
            return self._browser

    async def _launch(self) -> Browser:
        try:
            from playwright.async_api import async_playwright
        except ModuleNotFoundError:
            raise EnvSetupError("playwright is not installed: pip install 'palestra[web]'") from None
        path = executable()
        if path is None:
            raise EnvSetupError("there is no Chromium: apt-get install chromium, or set PALESTRA_CHROMIUM")
        if self._playwright is None:
            self._playwright = await async_playwright().start()
        if self._gateway is None:
            self._gateway = Gateway(MAX_SESSIONS)
            await self._gateway.start()
        self.launches += 1
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        return await self._playwright.chromium.launch(
            executable_path=path, args=[*FLAGS], chromium_sandbox=not root, timeout=START_S * 1000
        )

    def close(self) -> None:
        """Stop the browser and the thread. Calling it twice is fine."""
        if self._thread.is_alive() and self.pid == os.getpid():
            asyncio.run_coroutine_threadsafe(self._aclose(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)

    async def _aclose(self) -> None:
        self._idle = []
        if self._browser is not None:
            await self._browser.close()
        if self._playwright is not None:
            await self._playwright.stop()
        if self._gateway is not None:
            await self._gateway.aclose()


async def _bounded(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await work
    except TimeoutError:
        raise SandboxError(f"the page did not answer within {timeout_s:g} s") from None
    except Exception as error:
        if type(error).__module__.startswith("playwright"):
            raise SandboxError(f"the browser failed: {str(error).splitlines()[0]}") from error
        raise


_HOST: Host | None = None
_LOCK = threading.Lock()


def host() -> Host:
    """The host of this process, started when it is first asked for."""
    global _HOST
    with _LOCK:
        if _HOST is None or _HOST.pid != os.getpid():
            _HOST = Host()
            atexit.register(_HOST.close)
        return _HOST
