"""Messages between two replies, however a harness cuts them.

Harnesses join user messages that follow each other, split one into several, and move text from one message of
a role to the next. What they keep is the text in its order, but for whitespace where a message begins or ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, islice

from palestra.harness_proxy.points import Point, message_of
from palestra.trajectories.model import Message
from palestra.trajectories.normal import normal_form

_SPACE = re.compile(r"\s*")
_RUNS = 64
"""Runs of messages after one reply that are tried as one that was cut in other places."""


def note_end(point: Point) -> None:
    """A reply was sampled at `point`: tell the reply before it, or the root."""
    reply, run = point.since_reply()
    if run and all(message_of(p).role != "assistant" for p in run):
        start = reply or run[0].parent
        assert start is not None
        start.ends.append(point)


def same_end(start: Point, run: Sequence[Message]) -> Point | None:
    """The place after `start` to which `run` leads if it is cut as it was before; None if it needs no cutting
    or leads nowhere."""
    point: Point | None = start
    for message in run:
        point = point.children.get(normal_form(message)) if point is not None else None
    if point is not None and point.replies:
        return None
    ends = islice(reversed(start.ends), _RUNS)
    return next((end for end in ends if same_run([message_of(p) for p in end.since_reply()[1]], run)), None)


def same_run(old: Sequence[Message], new: Sequence[Message]) -> bool:
    """Whether two runs of messages without replies say the same, in the same roles.

    Tool results are cut only where they answer the same call.
    """
    ours, theirs = list(_parts(old)), list(_parts(new))
    return len(ours) == len(theirs) and all(map(_same_part, ours, theirs))


def _parts(run: Sequence[Message]) -> Iterator[list[Message]]:
    numbered = enumerate(run)
    for _, part in groupby(numbered, key=lambda m: _speaker(*m)):
        yield [message for _, message in part]


def _speaker(position: int, message: Message) -> tuple[str, str | int]:
    if message.role != "tool":
        return message.role, ""
    return message.role, message.tool_call_id or position


def _same_part(old: list[Message], new: list[Message]) -> bool:
    media = [[m.sha256 for message in part for m in message.media] for part in (old, new)]
    same = old[0].role == new[0].role and media[0] == media[1]
    return same and same_text([m.content for m in old], [m.content for m in new])


def same_text(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether pieces join to the same text, but for whitespace where a piece begins or ends."""
    ours, theirs = (filter(None, (piece.strip() for piece in pieces)) for pieces in (old, new))
    left, right, i, j = next(ours, ""), next(theirs, ""), 0, 0
    while left and right:
        size = min(len(left) - i, len(right) - j)
        if left[i : i + size] != right[j : j + size]:
            return False
        i, j = _after_space(left, i + size), _after_space(right, j + size)
        if i == len(left):
            left, i = next(ours, ""), 0
        if j == len(right):
            right, j = next(theirs, ""), 0
    return not left and not right


def _after_space(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    assert found is not None
    return found.end()
