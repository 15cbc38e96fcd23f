"""Sandboxes that are ready before they are asked for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

from palestra.envs.sandbox.base import Image, Limits, Sandbox, Snapshot
from palestra.envs.sandbox.closing import Closing
from palestra.envs.sandbox.errors import PoolBusyError, SandboxError

RETRY_S = 1.0


class Checkable(Sandbox, Protocol):
    """A sandbox that can say cheaply whether it still runs."""

    def alive(self) -> bool: ...


class Maker(Protocol):
    """The part of a backend that a pool uses."""

    def create(
        self,
        source: Image | Snapshot,
        limits: Limits | None = None,
        *,
        sockets: Mapping[int, Path] | None = None,
        shared: Mapping[str, Path] | None = None,
    ) -> Checkable: ...


class Pool(Closing):
    """Keeps `size` fresh sandboxes of one image ready, and at most `max_live` alive in all.

        pool = Pool(backend, image, size=8, max_live=64)
        with pool.acquire() as sandbox: ...      # closing it makes room for another one

    A sandbox is handed out once and never comes back: what was used is thrown away.
    """

    def __init__(
        self,
        maker: Maker,
        source: Image | Snapshot,
        limits: Limits | None = None,
        *,
        size: int = 4,
        max_live: int = 256,
        max_age_s: float = 600.0,
    ) -> None:
        """Starts to fill in the background. Raises ValueError unless 0 < size <= max_live."""
        if not 0 < size <= max_live:
            raise ValueError(f"need 0 < size <= max_live, got size={size}, max_live={max_live}")
        self._maker, self._source, self._limits = maker, source, limits
        self._size, self._max_live, self._max_age_s = size, max_live, max_age_s
        self._ready: deque[tuple[float, Checkable]] = deque()
        self._lent: set[str] = set()
        self._failure: SandboxError | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._filler = threading.Thread(target=self._fill, name="sandbox-pool", daemon=True)
        self._filler.start()

    def acquire(self, timeout_s: float = 60.0) -> Lease:
        """A sandbox that answers. Raises PoolBusyError, or the SandboxError that kept the pool from making one."""
        deadline = time.monotonic() + timeout_s
        while True:
            sandbox = self._take(deadline)
            if sandbox.alive():
                return Lease(self, sandbox)
            self.release(sandbox)

    def wait_until_full(self, timeout_s: float = 60.0) -> None:
        """Wait for `size` ready sandboxes. Raises what `acquire` raises."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while len(self._ready) < self._size:
                self._wait(deadline)

    def release(self, sandbox: Sandbox) -> None:
        """Close a sandbox that was lent."""
        try:
            sandbox.close()
        finally:
            with self._changed:
                self._lent.discard(sandbox.id)
                self._changed.notify_all()

    def close(self) -> None:
        """Close what is ready. What is lent stays with its holder. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._filler.join()
        while self._ready:
            self._ready.popleft()[1].close()

    def _take(self, deadline: float) -> Checkable:
        with self._changed:
            while not self._ready:
                self._wait(deadline)
            _, sandbox = self._ready.popleft()
            self._lent.add(sandbox.id)
            self._changed.notify_all()
            return sandbox

    def _wait(self, deadline: float) -> None:
        """Wait for any change; the caller holds the lock."""
        if self._closed:
            raise PoolBusyError("the pool is closed")
        if self._failure:
            raise self._failure
        left = deadline - time.monotonic()
        if left <= 0:
            raise PoolBusyError(
                f"no sandbox became free: {len(self._lent)} of {self._max_live} are lent; raise max_live or wait longer"
            )
        self._changed.wait(left)

    def _fill(self) -> None:
        while self._want_one():
            try:
                sandbox = self._maker.create(self._source, self._limits)
            except SandboxError as error:
                self._on_failure(error)
            else:
                self._on_made(sandbox)

    def _want_one(self) -> bool:
        """Wait until there is room for another one; False once the pool is closed."""
        with self._changed:
            while not self._closed:
                self._drop_old()
                if len(self._ready) < self._size and len(self._ready) + len(self._lent) < self._max_live:
                    return True
                self._changed.wait(self._max_age_s / 4)
            return False

    def _drop_old(self) -> None:
        while self._ready and time.monotonic() - self._ready[0][0] > self._max_age_s:
            self._ready.popleft()[1].close()

    def _on_made(self, sandbox: Checkable) -> None:
        with self._changed:
            self._failure = None
            self._ready.append((time.monotonic(), sandbox))
            self._changed.notify_all()

    def _on_failure(self, error: SandboxError) -> None:
        """Whoever waits is told; the next attempt comes after a moment."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()
            if not self._closed:
                self._changed.wait(RETRY_S)
            self._failure = None


class Lease:
    """A lent sandbox: leaving the block closes it and makes room in the pool."""

    def __init__(self, pool: Pool, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._pool = pool

    def close(self) -> None:
        self._pool.release(self.sandbox)

    def __enter__(self) -> Sandbox:
        return self.sandbox

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
