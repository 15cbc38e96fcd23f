"""Where the calls of an environment run: in a thread of its own, or with the short calls of many others.

An `OwnThread` is the one thread that ever touches its environment. It costs more than it looks: every call wakes
a thread, and a hundred threads that want the interpreter's lock mostly wait for it. So environments whose calls
are short and bound to no thread share a `Crew`, which takes all calls that the event loop gathered in one round
to one thread, and brings their results back together. A call that takes long keeps that thread, and those behind
it get another one: a slow call holds up nobody for more than a few milliseconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

PATIENCE_S = 0.005
"""Time in which a crew's thread has to finish a call; after it, the calls behind go to another thread."""
MAX_THREADS = 512
"""Calls of one crew that can be stuck at once; more wait."""


class Host(Protocol):
    """Where one environment lives. Its calls come one at a time."""

    async def run(self, function: Callable[[], T]) -> T:
        """function(), outside of the event loop. When the caller is cancelled, a call that has begun goes on."""
        ...

    @property
    def idle(self) -> bool:
        """Whether no call is running or waiting."""
        ...

    def end(self, function: Callable[[], None]) -> Future[None]:
        """function(), after the call that is running; nothing can be run here afterwards."""
        ...


class OwnThread:
    """A thread for one environment."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._calls: list[Future[Any]] = []

    async def run(self, function: Callable[[], T]) -> T:
        """See `Host`."""
        call = self._thread.submit(_carried, function)
        self._calls = [c for c in self._calls if not c.done()] + [call]
        return await asyncio.wrap_future(call)

    @property
    def idle(self) -> bool:
        """See `Host`."""
        return all(call.done() for call in self._calls)

    def end(self, function: Callable[[], None]) -> Future[None]:
        """See `Host`."""
        ended = self._thread.submit(function)
        self._thread.shutdown(wait=False)
        return ended


class Crew:
    """Threads for the short calls of many environments. Use it from one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="crew")
        self._gathered: deque[_Call] = deque()
        self._batch: _Batch | None = None
        self._called = False

    def submit(self, function: Callable[[], Any]) -> _Call:
        """Have `function` run soon, with what else comes in this round of the event loop."""
        loop = asyncio.get_running_loop()
        call = _Call(function, loop.create_future())
        self._gathered.append(call)
        if not self._called:
            self._called = True
            loop.call_soon(self._hand_over)
        return call

    def submit_after(self, call: _Call | None, function: Callable[[], None]) -> Future[None]:
        """Have `function` run, in a thread of the crew, once `call` has ended."""

        def wait_and_run() -> None:
            with call.busy if call is not None else nullcontext():
                function()

        return self._threads.submit(wait_and_run)

    def close(self) -> None:
        """Take no more calls; threads end when their calls do."""
        self._threads.shutdown(wait=False)

    def _hand_over(self) -> None:
        """Give what was gathered to a thread, unless one is at it: then it goes when that one is done."""
        self._called = False
        if self._batch is None and self._gathered:
            batch = self._batch = _Batch(self._gathered, asyncio.get_running_loop(), self._ended)
            self._gathered = deque()
            self._threads.submit(batch.work)
            batch.watch(self._late)

    def _ended(self, batch: _Batch) -> None:
        batch.settle()
        if batch is self._batch:
            batch.unwatch()
            self._batch = None
            self._hand_over()

    def _late(self, batch: _Batch) -> None:
        """The call in hand keeps its thread; those behind it go to the next one."""
        self._gathered.extendleft(reversed(batch.take_rest()))
        self._batch = None
        self._hand_over()


class CrewHost:
    """One environment among those that share a crew."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._last: _Call | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """See `Host`."""
        self._last = self._crew.submit(function)
        result: T = await self._last.future
        return result

    @property
    def idle(self) -> bool:
        """See `Host`."""
        return self._last is None or not self._last.busy.locked()

    def end(self, function: Callable[[], None]) -> Future[None]:
        """See `Host`."""
        return self._crew.submit_after(self._last, function)


class _Call:
    """One call. `busy` is locked until it has ended, whether or not somebody still waits for it."""

    __slots__ = ("busy", "error", "function", "future", "result")

    def __init__(self, function: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.function, self.future = function, future
        self.result: Any = None
        self.error: BaseException | None = None
        self.busy = threading.Lock()
        self.busy.acquire()

    def work(self) -> None:
        """Run it, in a thread, unless its caller was cancelled before."""
        try:
            if not self.future.cancelled():
                self.result = _carried(self.function)
        except BaseException as error:  # whatever it is, it is the caller's
            self.error = error
        finally:
            self.busy.release()

    def settle(self) -> None:
        """Tell the caller, in the event loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class _Batch:
    """Calls that went to a thread together."""

    def __init__(
        self, calls: deque[_Call], loop: asyncio.AbstractEventLoop, ended: Callable[[_Batch], None]
    ) -> None:
        self._calls, self._loop, self._on_end = calls, loop, ended
        self._done: deque[_Call] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def work(self) -> None:
        """Run the calls, in a thread, until none is left."""
        while self._calls:
            try:
                call = self._calls.popleft()
            except IndexError:  # the rest was taken away in between
                break
            call.work()
            self._done.append(call)
        self._loop.call_soon_threadsafe(self._on_end, self)

    def settle(self) -> int:
        """Tell the callers of what is done; returns how many."""
        count = len(self._done)
        for _ in range(count):
            self._done.popleft().settle()
        return count

    def watch(self, late: Callable[[_Batch], None]) -> None:
        """Bring results back now and then; `late` is called where a call takes longer than PATIENCE_S."""

        def look() -> None:
            if self.settle():
                self.watch(late)
            else:
                late(self)

        self._timer = self._loop.call_later(PATIENCE_S, look)

    def unwatch(self) -> None:
        """All calls have ended."""
        if self._timer is not None:
            self._timer.cancel()

    def take_rest(self) -> list[_Call]:
        """The calls that no thread has begun."""
        rest: list[_Call] = []
        while self._calls:
            try:
                rest.append(self._calls.popleft())
            except IndexError:  # the thread was quicker
                break
        return rest


def _carried(function: Callable[[], T]) -> T:
    """function(), with what a future cannot carry, or what would end the whole process, as a RuntimeError."""
    try:
        return function()
    except (StopIteration, SystemExit) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
