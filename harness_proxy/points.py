"""The places in a session's conversations: one for each message in its history."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from palestra.trajectories.model import Drift, Message
from palestra.trajectories.normal import normal_form


@dataclass(eq=False)
class Point:
    """One message in its history. Those that the engine sampled have a `node_id`."""

    parent: Point | None = None
    message: Message | None = None
    node_id: int | None = None
    drift: Drift | None = None
    depth: int = 0
    children: dict[Hashable, Point] = field(default_factory=dict)
    replies: list[Point] = field(default_factory=list)
    ends: list[Point] = field(default_factory=list)
    """Of a reply or a root: where replies were sampled next, with no other reply between."""
    _since: tuple[Point | None, list[Point]] | None = None

    @cached_property
    def form(self) -> Hashable:
        """What stays the same when a harness writes the message again."""
        return normal_form(self.message) if self.message is not None else None

    def up(self) -> Iterator[Point]:
        """This point and those above it, without the root."""
        point = self
        while point.parent is not None:
            yield point
            point = point.parent

    def messages(self) -> list[Message]:
        """The history that ends here."""
        return [p.message for p in self.up() if p.message is not None][::-1]

    def since_reply(self) -> tuple[Point | None, list[Point]]:
        """The nearest sampled reply at or above, and the points below it in order: what is above never changes."""
        if self._since is None:
            self._since = self._find_reply()
        return self._since

    def _find_reply(self) -> tuple[Point | None, list[Point]]:
        tail: list[Point] = []
        for point in self.up():
            if point.node_id is not None:
                return point, tail[::-1]
            tail.append(point)
        return None, tail[::-1]


def message_of(point: Point) -> Message:
    """The message of a point that is no root."""
    assert point.message is not None
    return point.message


def first_difference(recorded: Point, seen: Point) -> Drift:
    """Where the history of `seen` departs from that of `recorded`."""
    old, new = list(recorded.up())[::-1], list(seen.up())[::-1]
    if _root(recorded) is not _root(seen):
        return Drift("tools", 0)
    pairs = enumerate(zip(old, new, strict=False))
    position = next((i for i, (a, b) in pairs if a is not b), min(len(old), len(new)))
    system = any(
        message_of(p).role == "system" for p in [*old[position : position + 1], *new[position : position + 1]]
    )
    return Drift("system" if system else "message", position)


def _root(point: Point) -> Point:
    while point.parent is not None:
        point = point.parent
    return point
