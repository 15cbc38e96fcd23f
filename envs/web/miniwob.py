"""MiniWoB++ as a target: the pages of the `miniwob` package, their seeds, and a reward that they cannot forge.

The pages are served as http://miniwob.test/ with a content security policy that admits the scripts of the package by
their hashes and nothing else: markup that an agent types into a page never becomes script. Time in the page moves with
the steps (`clock.js`), so there is no decay by wall-clock time; the reward is the raw one. A wrapper around
`core.endEpisode` keeps the first result of an episode in an object that no page can reach: it is held by the DevTools
session alone. The variables WOB_*_GLOBAL are never read.

Source: Liu et al. 2018 (arXiv:1802.08802) and Farama-Foundation/miniwob-plusplus (html/core/core.js).
"""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import html
import mimetypes
import re
from collections.abc import Generator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from palestra.envs.errors import EnvSetupError, SandboxError
from palestra.envs.web.gateway import App, files
from palestra.envs.web.observation import View
from palestra.envs.web.session import Session
from palestra.envs.web.tab import STEP_MS
from palestra.tasks.task import Task
from palestra.tasks.web.actions import act
from palestra.trajectories.model import Score

HOST = "miniwob.test"
NAME, VERSION = "miniwob-raw-reward", "1"
FRESH = frozenset({
    "book-flight", "book-flight-nodelay", "chase-circle", "choose-date", "choose-date-easy", "choose-date-medium",
    "choose-date-nodelay", "click-pie", "click-pie-nodelay", "email-inbox", "moving-items", "scroll-text-2",
    "search-engine", "stock-market", "use-autocomplete", "use-autocomplete-nodelay", "use-colorwheel",
    "use-colorwheel-2",
})  # fmt: skip
"""Tasks whose page keeps something from one episode to the next, so that it is loaded anew."""

_SCRIPT = re.compile(rb"<script(?P<attributes>[^>]*)>(?P<body>.*?)</script>", re.DOTALL | re.IGNORECASE)
_HANDLER = re.compile(rb"""\son\w+\s*=\s*("(?P<a>[^"]*)"|'(?P<b>[^']*)')""", re.IGNORECASE)

_WATCH = """
(() => {
  const box = Object.create(null), begun = core.endEpisode;
  Object.assign(box, { done: false, raw: 0, reason: '' });
  core.endEpisode = function (reward, proportional, reason) {
    if (!box.done) { box.done = true; box.raw = Number(reward); box.reason = String(reason || ''); }
    return begun.apply(this, arguments);
  };
  box.begin = (seed) => {
    __palestraClock.reset();
    Math.seedrandom(seed);
    core.EPISODE_MAX_TIME = 1e9;
    if (document.activeElement) document.activeElement.blur();
    document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex');
    core.startEpisodeReal();
    box.done = false; box.raw = 0; box.reason = '';
    const said = core.getUtterance();
    return typeof said === 'string' ? said : JSON.stringify(said);
  };
  box.step = (milliseconds) => {
    if (!box.done) __palestraClock.advance(milliseconds);
    return [box.done, box.raw, box.reason];
  };
  return box;
})()
"""


@functools.cache
def root() -> Path:
    """The directory `html` of the installed package. Raises EnvSetupError."""
    spec = find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise EnvSetupError("miniwob is not installed: pip install 'palestra[web]'")
    return Path(spec.submodule_search_locations[0]) / "html"


@functools.lru_cache(maxsize=512)
def page(path: str) -> tuple[bytes, str, str] | None:
    """(body, content type, content security policy) of a file below `root()`."""
    found = (root() / path.lstrip("/")).resolve()
    if not found.is_relative_to(root().resolve()) or not found.is_file():
        return None
    body = found.read_bytes()
    kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
    html_page = kind == "text/html"
    return body, f"{kind}; charset=utf-8" if html_page else kind, policy(body) if html_page else ""


def policy(body: bytes) -> str:
    """A content security policy for one page: its own scripts and handlers, by hash, and files of its site."""
    inline = [m["body"] for m in _SCRIPT.finditer(body) if b"src=" not in m["attributes"].lower()]
    handlers = [html.unescape((m["a"] or m["b"] or b"").decode()).encode() for m in _HANDLER.finditer(body)]
    hashes = sorted({base64.b64encode(hashlib.sha256(s).digest()).decode() for s in [*inline, *handlers]})
    allowed = " ".join(f"'sha256-{h}'" for h in hashes)
    return (
        f"default-src 'self' data:; style-src 'self' 'unsafe-inline'; form-action 'none'; base-uri 'none'; "
        f"script-src 'self' 'unsafe-eval' 'unsafe-hashes' {allowed}"
    )


class MiniWob:
    """One MiniWoB++ episode. `task.data`: miniwob (the page's name) and seed."""

    viewport = (332, 320)
    ignore = "#query, #reward-display, #click-canvas, #sync-task-cover"

    def __init__(self, task: Task) -> None:
        self.name, self.seed = str(task.data["miniwob"]), task.data["seed"]
        self.sites: Mapping[str, App] = {HOST: files(page)}
        self.warm = "" if self.name in FRESH else f"miniwob/{self.name}"
        self.path = f"/miniwob/{self.name}.html" if "/" not in self.name else f"/{self.name}"
        if page(self.path) is None:
            raise EnvSetupError(f"task {task.id!r}: miniwob has no page {self.name!r}")
        self._box = self.goal = ""
        self.result: tuple[bool, float, str] = (False, 0.0, "")

    async def begin(self, session: Session, task: Task) -> tuple[str, View]:
        """Load the page, or use it again, and start an episode with the seed."""
        tab = session.tab
        if not self.warm or session.warm != self.warm or tab.main is None:
            await session.forget()
            await tab.goto(f"http://{HOST}{self.path}")
            tab.main = await self._watch(session)
            session.warm = self.warm
        self._box, self.result = tab.main, (False, 0.0, "")
        await tab.park_mouse()
        begun = self._call(session, "begin", self.seed)
        goal, view = await asyncio.gather(begun, session.view(fresh=True))
        self.goal = str(goal)
        return self.goal, view

    async def after_step(self, session: Session) -> bool:
        """Let time pass until the episode has ended."""
        if not self.result[0]:
            done, raw, reason = await self._call(session, "step", STEP_MS)
            self.result = (bool(done), float(raw), str(reason))
        return self.result[0]

    async def grade(self, session: Session, task: Task, answer: str | None) -> Score:
        """The raw reward, at least 0; `parts["raw"]` has its sign."""
        done, raw, reason = self.result
        why = (reason or "the episode ended") if done else "the episode did not end"
        return Score(min(1.0, max(0.0, raw)), True, {"raw": raw}, NAME, VERSION, f"{why}: raw reward {raw:g}")

    def state(self) -> str:
        """The result; all else is in the page."""
        return repr(self.result)

    def solve(self, task: Task, view: View) -> Generator[str, View, None]:
        """The scripted oracle of the page; nothing where there is none."""
        from palestra.envs.web.miniwob_oracles import ORACLES

        if self.name in ORACLES:
            yield from ORACLES[self.name](self.goal, view)

    def cheats(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Ways to the reward that do not go through the task."""
        script = "core.endEpisode(1)"
        return {
            "javascript: address": (act("goto", url=f"javascript:{script}"),),
            "data: address": (act("goto", url=f"data:text/html,<script>opener.{script}</script>"),),
            "script as an action": (script,),
        }

    async def _watch(self, session: Session) -> str:
        reply = await session.tab.cdp.send("Runtime.evaluate", {"expression": _WATCH})
        if "objectId" not in reply["result"]:
            raise EnvSetupError(f"the page of {self.name} did not start: {reply}")
        return str(reply["result"]["objectId"])

    async def _call(self, session: Session, function: str, argument: Any) -> Any:
        reply = await session.tab.cdp.send(
            "Runtime.callFunctionOn",
            {
                "objectId": self._box,
                "functionDeclaration": f"function(argument) {{ return this.{function}(argument) }}",
                "arguments": [{"value": argument}],
                "returnByValue": True,
            },
        )
        if "exceptionDetails" in reply:
            what = reply["exceptionDetails"].get("exception", {}).get("description", "")
            raise SandboxError(f"the page of {self.name} failed: {what[:300]}")
        return reply["result"].get("value")
