"""A call that is repeated in the background until somebody stops it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Repeat:
    """Calls `function` every `seconds`; what it raises is logged, and the next call comes all the same."""

    def __init__(self, function: Callable[[], object], seconds: float) -> None:
        self._function, self._seconds = function, seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox-reaper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns once no call is under way. Idempotent."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            try:
                self._function()
            except Exception:
                log.exception("cleaning up after dead processes failed")
