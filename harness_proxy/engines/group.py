"""Several engines that serve the same policy, as one engine.

    engine = EngineGroup([CompletionsEngine(url, "policy") for url in urls])

A session stays with one engine, whose cache holds its prefix; a new one goes to the engine with the least to do.
Each engine has so many calls at once, further ones wait in line, and past that they are refused (429). An engine
that fails gets no sessions until it answers a probe again; its own sessions move when they ask again, which token
ids allow without any loss but of cache. For an update of weights, pause, drain, update and resume, all engines or
one after the other; calls wait meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from palestra.harness_proxy.engines.base import (
    Capability,
    Engine,
    EngineError,
    EngineFullError,
    EngineUnavailableError,
    Generation,
)
from palestra.trajectories.model import Sampling

log = logging.getLogger(__name__)

_SESSIONS = 100_000
"""Sessions whose engine is remembered."""


class Member:
    """One engine of a group, and its line."""

    def __init__(self, engine: Engine, number: int, max_in_flight: int, max_queued: int) -> None:
        self.engine, self.number = engine, number
        self.is_up = True
        self.in_flight = self.queued = self.sessions = 0
        self.version: int | None = None
        """Policy version of its latest reply; None before the first."""
        self._max_queued = max_queued
        self._slots = asyncio.Semaphore(max_in_flight)
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()

    @property
    def load(self) -> int:
        """Calls that it works on and that wait for it."""
        return self.in_flight + self.queued

    @property
    def is_paused(self) -> bool:
        """Whether it begins no calls for now."""
        return not self._open.is_set()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """For the time of one call. Raises EngineFullError where the line is too long."""
        if self.queued >= self._max_queued and (self._slots.locked() or self.is_paused):
            raise EngineFullError(f"{self.queued} calls wait for engine {self.number} already")
        self.queued += 1
        try:
            await self._slots.acquire()
            try:
                while self.is_paused:
                    await self._open.wait()
            except BaseException:
                self._slots.release()
                raise
        finally:
            self.queued -= 1
        self.in_flight += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            self._slots.release()
            if not self.in_flight:
                self._empty.set()

    def pause(self) -> None:
        """Begin no more calls; those that come wait in line."""
        self._open.clear()

    def resume(self) -> None:
        """Begin calls again."""
        self._open.set()

    async def drain(self) -> None:
        """Wait until it works on nothing. Pause first."""
        await self._empty.wait()


class EngineGroup:
    """See the module. Implements `Engine`. Use it from one event loop."""

    def __init__(
        self,
        engines: Sequence[Engine],
        *,
        max_in_flight: int = 256,
        max_queued: int = 256,
        probe_every_s: float = 5.0,
    ) -> None:
        """`max_in_flight` and `max_queued`: calls per engine. `probe_every_s`: how often one that failed is asked
        whether it is back. Raises ValueError for no engines and for limits below 1 and 0."""
        if not engines or max_in_flight < 1 or max_queued < 0:
            raise ValueError(
                "give at least one engine, max_in_flight of at least 1 and max_queued of at least 0, got "
                f"{len(engines)}, {max_in_flight}, {max_queued}"
            )
        self.members = [Member(e, i, max_in_flight, max_queued) for i, e in enumerate(engines)]
        self._probe_every_s = probe_every_s
        self._capability: Capability | None = None
        self._sessions: OrderedDict[str, Member] = OrderedDict()
        self._reviving: dict[Member, asyncio.Task[None]] = {}

    async def probe(self) -> Capability:
        """Ask all engines. Raises EngineError where one does not answer or gives something else than another.

        Their context is the smallest one.
        """
        found = await asyncio.gather(*(member.engine.probe() for member in self.members))
        context_tokens = min(c.context_tokens for c in found)
        alike = {replace(c, context_tokens=context_tokens) for c in found}
        if len(alike) > 1:
            listed = "; ".join(f"engine {i}: {c}" for i, c in enumerate(found))
            raise EngineError(
                f"the engines of a group must serve the same model and give the same, got {listed}"
            )
        self._capability = alike.pop()
        return self._capability

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str = ""
    ) -> Generation:
        """One reply of the session's engine. Raises EngineFullError, EngineUnavailableError and what it raises."""
        member = self._member(session)
        async with member.place():
            try:
                reply = await member.engine.generate(prompt_ids, sampling, session=session)
            except EngineUnavailableError as error:
                self._lose(member, error)
                raise
        member.version = reply.versions[-1][1]
        return reply

    @property
    def versions(self) -> tuple[int | None, ...]:
        """Policy version of the latest reply of each engine."""
        return tuple(member.version for member in self.members)

    def pause(self) -> None:
        """Begin no more calls on any engine; those that come wait in line."""
        for member in self.members:
            member.pause()

    def resume(self) -> None:
        """Begin calls again."""
        for member in self.members:
            member.resume()

    async def drain(self) -> None:
        """Wait until no engine works on a call. Pause first."""
        await asyncio.gather(*(member.drain() for member in self.members))

    async def aclose(self) -> None:
        """Close all engines. Calling it twice is fine."""
        for task in self._reviving.values():
            task.cancel()
        await asyncio.gather(*(member.engine.aclose() for member in self.members))

    def _member(self, session: str) -> Member:
        known = self._sessions.get(session) if session else None
        if known is not None and known.is_up:
            self._sessions.move_to_end(session)
            return known
        up = [member for member in self.members if member.is_up]
        if not up:
            raise EngineUnavailableError(f"all {len(self.members)} engines are down")
        return self._assign(session, up)

    def _assign(self, session: str, up: Sequence[Member]) -> Member:
        """The engine with the least to do; of several the one that was given the fewest sessions."""
        chosen = min(up, key=lambda member: (member.is_paused, member.load, member.sessions))
        chosen.sessions += 1
        if session:
            self._sessions[session] = chosen
            if len(self._sessions) > _SESSIONS:
                self._sessions.popitem(last=False)
        return chosen

    def _lose(self, member: Member, why: EngineError) -> None:
        if member.is_up:
            member.is_up = False
            log.warning("engine %d is down: %s", member.number, why)
            self._reviving[member] = asyncio.create_task(self._revive(member))

    async def _revive(self, member: Member) -> None:
        """Probe until it answers as it did; one that was only overloaded is back at once."""
        while not await self._answers(member):
            await asyncio.sleep(self._probe_every_s)
        member.is_up = True
        del self._reviving[member]
        log.warning("engine %d is back", member.number)

    async def _answers(self, member: Member) -> bool:
        try:
            found = await member.engine.probe()
        except EngineError:
            return False
        wanted = self._capability
        same = wanted is None or replace(found, context_tokens=wanted.context_tokens) == wanted
        if not same or (wanted is not None and found.context_tokens < wanted.context_tokens):
            log.warning("engine %d is back and gives %s, not %s: it stays out", member.number, found, wanted)
            return False
        return True
