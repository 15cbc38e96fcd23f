"""Which recorded reply does a history continue?

A session's conversations form a tree of messages. Callers send the whole history every time and rarely send
it back as they got it: keys reordered, arguments compacted, text trimmed, parts split, reasoning dropped.
`walk` follows a history down the tree, forgiving that, and ends at a `Point`; the nearest recorded reply
above it owns the token ids to continue. A sampled reply is recognised by the ids of its tool calls, which the
proxy made up, else by its normal form; where several look the same, a reply id that the caller carried along
decides, else the latest. Assistant messages in a row may be one reply in pieces.

A reply that comes back without its reasoning is continued as it was sampled ("splice", the default), or is
taken for another one and rendered as it came ("fork", with a drift of kind reasoning).

Messages between two replies may come back joined or split (runs.py): where they end at a place at which a reply
was sampled, they are that place.

Items that were sent before in the same order are compared as they are, which is C speed, so a turn costs
Python work only for what is new. What this is not: the token graph. Two texts that tokenise alike are two
points here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any, Literal

from palestra.harness_proxy.points import Point, first_difference, message_of
from palestra.harness_proxy.runs import note_end, same_end
from palestra.trajectories.model import Drift, Message
from palestra.trajectories.normal import normal_form

__all__ = ["DroppedReasoning", "History", "Point"]

DroppedReasoning = Literal["splice", "fork"]
"""What a reply that comes back without its reasoning is: the same one, or another."""

_THREADS = 4
"""Conversations of one session that are remembered as sent; more are read in full."""
_PIECES = 16
"""Assistant messages in a row that are tried as pieces of one reply."""
_TURNS = 64
"""Turns that are read again where a history departs in the middle of what follows a reply."""


@dataclass(frozen=True, slots=True)
class _Thread:
    tools: str | None
    turns: list[Any]
    points: list[Point | None]
    """At the end of each turn; None inside a reply that came in pieces."""


_Read = tuple[Sequence[Message], str | None]
"""What one turn says, and the reply id that it carries."""


def _says_nothing(turn: Any) -> str | None:
    return None


class History:
    """All conversations of one session."""

    def __init__(self, dropped_reasoning: DroppedReasoning = "splice") -> None:
        self._may_drop_reasoning = dropped_reasoning == "splice"
        self._by_reply_id: dict[str, Point] = {}
        self._roots: dict[str | None, Point] = {}
        self._threads: list[_Thread] = []
        self._by_call_id: dict[str, Point] = {}
        self._replies: list[Point] = []

    def walk(
        self,
        tools_sha256: str | None,
        turns: list[Any],
        read: Callable[[Any], Sequence[Message]],
        reply_id: Callable[[Any], str | None] = _says_nothing,
    ) -> Point:
        """The point at which `turns` end; messages that are new are added.

        `read` makes messages of one turn, `reply_id` finds the reply id that the turn carries.
        """
        thread, shared = self._thread(tools_sha256, turns)
        points = thread.points[:shared] if thread is not None else []
        while points and points[-1] is None:
            points.pop()
        new = [(read(turn), reply_id(turn)) for turn in turns[len(points) :]]
        root = self._roots.get(tools_sha256)
        if root is None:
            root = self._roots[tools_sha256] = Point()
        last = points[-1] if points else None
        asked = last is not None and bool(last.replies) and bool(new) and _is_reply(new[0])
        if new and not asked and (lost := _back_to_reply(points, root)):
            new = [(read(turn), reply_id(turn)) for turn in turns[len(points) : len(points) + lost]] + new
        point = (points[-1] if points else None) or root
        position = 0
        while position < len(new):
            point, taken = self._advance(point, new, position)
            points += [None] * (taken - 1)
            points.append(point)
            position += taken
        self._remember(_Thread(tools_sha256, turns, points), thread)
        return point

    def record(self, point: Point, reply: Message, node_id: int, reply_id: str = "") -> None:
        """`reply` was sampled at `point`, is `node_id` of the token graph and was sent under `reply_id`."""
        sampled = Point(point, reply, node_id, None, point.depth + 1)
        self._by_reply_id[reply_id] = sampled
        if not point.replies:
            note_end(point)
        point.replies.append(sampled)
        self._replies.append(sampled)
        self._by_call_id.update((call.id, sampled) for call in reply.tool_calls)

    def _thread(self, tools: str | None, turns: list[Any]) -> tuple[_Thread | None, int]:
        best: _Thread | None = None
        longest = 0
        for thread in self._threads:
            shared = _shared(thread.turns, turns) if thread.tools == tools else 0
            if shared > longest:
                best, longest = thread, shared
        return best, longest

    def _remember(self, new: _Thread, old: _Thread | None) -> None:
        """Keep `new`, and `old` unless `new` is the same conversation further on."""
        if old is not None and old.points and new.points[len(old.points) - 1 :][:1] == old.points[-1:]:
            self._threads.remove(old)
        self._threads = [new, *self._threads[: _THREADS - 1]]

    def _advance(self, point: Point, new: Sequence[_Read], position: int) -> tuple[Point, int]:
        """(the point after the turn at `position`, how many turns it took)."""
        messages, reply_id = new[position]
        pieces = []
        if _is_reply(new[position]):
            pieces = list(takewhile(_is_reply, islice(new, position, position + _PIECES)))
        for count in range(len(pieces) if point.replies else 0, 1, -1):
            reply = self._in_pieces(point, [messages[0] for messages, _ in pieces[:count]])
            if reply is not None:
                return reply, count
        if point.ends and not pieces:
            run = list(takewhile(_has_no_reply, islice(new, position, None)))
            end = same_end(point, [message for messages, _ in run for message in messages])
            if end is not None:
                return end, len(run)
        for message in messages:
            point = self._step(point, message, reply_id)
        return point, 1

    def _in_pieces(self, point: Point, pieces: list[Message]) -> Point | None:
        """The reply sampled at `point` whose pieces, in order, are `pieces`."""
        whole = Message(
            "assistant",
            "".join(p.content for p in pieces),
            "".join(p.reasoning for p in pieces if p.reasoning is not None) or None,
            tuple(call for p in pieces for call in p.tool_calls),
        )
        reply = self._recorded(point, whole)
        same = reply is not None and message_of(reply).content.split() == whole.content.split()
        return reply if same else None

    def _step(self, point: Point, message: Message, reply_id: str | None = None) -> Point:
        if message.role == "assistant":
            reply = self._recorded(point, message, reply_id)
            if reply is not None:
                return reply
        key = normal_form(message)
        child = point.children.get(key)
        if child is None:
            drift = self._drift(point, message) if message.role == "assistant" else None
            child = point.children[key] = Point(point, message, None, drift, point.depth + 1)
        return child

    def _recorded(self, point: Point, message: Message, reply_id: str | None = None) -> Point | None:
        """The reply sampled at `point` that `message` brings back."""
        known = self._known(message)
        if known is not None:
            same = known.parent is point and _same_calls(message, known)
            return known if same and self._keeps_reasoning(message, known) else None
        likely = self._by_reply_id.get(reply_id) if reply_id is not None else None
        candidates = [*([likely] if likely in point.replies else []), *reversed(point.replies)]
        same_replies = (r for r in candidates if _equal(message, r))
        return next((r for r in same_replies if self._keeps_reasoning(message, r)), None)

    def _keeps_reasoning(self, message: Message, reply: Point) -> bool:
        """Whether `message` has reasoning where `reply` has, or need not have it."""
        return self._may_drop_reasoning or not _lacks_reasoning(message, reply)

    def _drift(self, point: Point, message: Message) -> Drift | None:
        """Why an assistant message that looks sampled is not where it was sampled; None for a foreign one."""
        counterpart = self._known(message) or next((r for r in self._replies if _equal(message, r)), None)
        if counterpart is not None and counterpart.parent is point and _lacks_reasoning(message, counterpart):
            return Drift("reasoning", point.depth)
        if counterpart is not None and counterpart.parent is not None:
            return first_difference(counterpart.parent, point)
        return Drift("message", point.depth) if point.replies else None

    def _known(self, message: Message) -> Point | None:
        return next((self._by_call_id[c.id] for c in message.tool_calls if c.id in self._by_call_id), None)


def _back_to_reply(points: list[Point | None], root: Point) -> int:
    """Cut `points` after the last reply in it, if replies are known to follow it; returns how many it lost."""
    after = (
        i for i in range(len(points), 0, -1) if (p := points[i - 1]) is not None and p.node_id is not None
    )
    kept = next(after, 0)
    start = points[kept - 1] if kept else root
    if start is None or not start.ends or len(points) - kept > _TURNS:
        return 0
    lost = len(points) - kept
    del points[kept:]
    return lost


def _same_calls(message: Message, reply: Point) -> bool:
    """Whether the tool calls are those of `reply`, by the ids that were not dropped."""
    ids = [c.id for c in message.tool_calls]
    known = [c.id for c in message_of(reply).tool_calls]
    return len(ids) == len(known) and all(a in ("", b) for a, b in zip(ids, known, strict=True))


def _is_reply(read: _Read) -> bool:
    messages, _ = read
    return len(messages) == 1 and messages[0].role == "assistant"


def _has_no_reply(read: _Read) -> bool:
    return all(message.role != "assistant" for message in read[0])


def _lacks_reasoning(message: Message, reply: Point) -> bool:
    return not message.reasoning and bool(message_of(reply).reasoning)


def _equal(message: Message, reply: Point) -> bool:
    """Whether `message` is `reply` written again. Reasoning that was dropped matches."""
    reasoning = (message_of(reply).reasoning or "").strip()
    kept = message.reasoning is None or message.reasoning.strip() == reasoning
    return kept and normal_form(message) == reply.form


def _shared(old: list[Any], new: list[Any]) -> int:
    if new[: len(old)] == old:
        return len(old)
    return next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
