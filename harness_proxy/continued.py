"""What came of a recorded reply: for those who look at the world while others act in it.

The request after a reply carries the results of its tool calls: when it arrives, the harness has done what the reply
asked for, and the world is in the state that the next reply will be sampled in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from palestra.trajectories.model import Message, Role


@dataclass(frozen=True, slots=True)
class Continued:
    """A recorded reply, and what the harness sent after it."""

    call: int
    """`Call.seq` of the reply."""
    reply: Message
    since: tuple[Message, ...]
    role: Role
    """Of the request that continues it."""


Observer = Callable[[Continued], Awaitable[str | None]]
"""Awaited before the request is answered. A word that it returns names a budget that is spent: the request is answered
as those past a budget are. It must not raise."""
