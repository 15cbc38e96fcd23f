"""What can be looked at of an episode afterwards, one directory each: `<task>-<number>/`.

    000.png ...   the window at the beginning and after every step
    video.webp    the same as an animation, a second per step
    trace.zip     Playwright's trace: input, requests and a film strip, for `playwright show-trace`

Recording changes nothing that an agent sees. The trace has no snapshots of the document, because taking them runs
a script in the page.
"""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

from palestra.envs.web.pictures import screenshot
from palestra.envs.web.session import Session

FRAME_MS = 1000
_log = logging.getLogger(__name__)


class Recording:
    """One episode in `session`. Its coroutines run in the browser's event loop."""

    def __init__(self, root: Path, task_id: str, session: Session) -> None:
        """Makes a directory of its own below `root`."""
        self._session = session
        self._frames: list[Path] = []
        self.directory = _directory(root, task_id)

    async def begin(self) -> None:
        """From now on, what happens is traced."""
        await self._session.context.tracing.start(screenshots=True, title=self.directory.name)
        await self.frame()

    async def frame(self) -> None:
        """The window as it is."""
        path = self.directory / f"{len(self._frames):03d}.png"
        path.write_bytes(await screenshot(self._session.tab))
        self._frames.append(path)

    async def end(self) -> None:
        """Write trace and video. Of a browser that died the pictures taken so far are left."""
        try:
            await self._session.context.tracing.stop(path=self.directory / "trace.zip")
        except Exception as error:  # the episode has ended, and how it ended is told elsewhere
            _log.warning("%s has no trace: %s", self.directory, error)
            self._session.broken = True
        film(self._frames, self.directory / "video.webp")


def film(frames: list[Path], target: Path) -> None:
    """An animation of pictures."""
    from PIL import Image

    first, *others = [Image.open(path) for path in frames]
    first.save(
        target, save_all=True, append_images=others, duration=FRAME_MS, lossless=True, minimize_size=False
    )


def _directory(root: Path, task_id: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for number in itertools.count():
        made = root / f"{task_id.replace('/', '_')}-{number:03d}"
        try:
            made.mkdir()
        except FileExistsError:
            continue
        return made
    raise AssertionError
