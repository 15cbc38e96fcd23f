"""What a harness is: anything that plays a world with a model behind an API address and a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from palestra.harness_proxy.continued import Continued, Observer
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.sessions import Session
from palestra.rollouts.world import World


class Line(Protocol):
    """What a harness may ask of its session, beside what goes over HTTP."""

    async def unix_socket(self) -> Path:
        """Where the proxy listens for places without a network."""
        ...

    def last_call(self) -> int | None:
        """`Call.seq` of the latest reply; None before the first."""
        ...

    def watch(self, observer: Observer) -> None:
        """From now on `observer` is told what came of each reply, before the next one is sampled."""
        ...

    def replies(self) -> Sequence[Continued]:
        """All replies that reached the harness, in order."""
        ...

    def stops(self) -> Sequence[str]:
        """Budgets of the session that ran out."""
        ...

    def failed(self) -> bool:
        """Whether the session can no longer be scored, whatever the harness does."""
        ...


@dataclass(frozen=True, slots=True)
class ProxyLine:
    """The line to a session of a proxy in this process."""

    proxy: Proxy
    session: Session

    async def unix_socket(self) -> Path:
        """See Line. Raises ProxyStateError for a proxy that does not listen."""
        return await self.proxy.unix_socket()

    def last_call(self) -> int | None:
        """See Line."""
        return self.session.calls[-1].seq if self.session.calls else None

    def watch(self, observer: Observer) -> None:
        """See Line."""
        self.session.observer = observer

    def replies(self) -> Sequence[Continued]:
        """See Line."""
        return self.session.replies()

    def stops(self) -> Sequence[str]:
        """See Line."""
        return self.session.stops

    def failed(self) -> bool:
        """See Line."""
        return self.session.failed


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a harness finds its model: an OpenAI-compatible base URL ending in /v1, and a key."""

    base_url: str
    key: str
    session: str = ""
    """The rollout's id, which engines see as their session."""
    model: str = "palestra"
    line: Line | None = None
    """None where the proxy is in another process."""


class Harness(Protocol):
    """Plays one episode. One instance serves many rollouts at once."""

    name: str
    version: str

    async def run(self, world: World, endpoint: Endpoint) -> None:
        """Act until the world is over or the harness gives up.

        Raises RolloutError at boundary provider when the model is out of reach. Any other exception is a
        failure at boundary harness; what the agent itself does wrong is none.
        """
        ...

    async def aclose(self) -> None:
        """Release connections. Calling it twice is fine."""
        ...
