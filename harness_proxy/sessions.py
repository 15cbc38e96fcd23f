"""One rollout's side of the proxy: its key, its budgets, and everything recorded about it.

A session is made by `Proxy.open` and ends by `Proxy.close`, which returns a `Recording`. Calls are recorded
before they are answered; one whose answer could not be handed over is marked `delivered=False` and is never
trained on.

A failure of the engine or of the proxy that the harness did not get over marks the recording as failed, so
that nobody takes what the harness did without an answer for a measurement.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import orjson

from palestra.harness_proxy.continued import Continued, Observer
from palestra.harness_proxy.dialects.base import Reply
from palestra.harness_proxy.errors import BadRequestError, UnknownKeyError
from palestra.harness_proxy.history import History
from palestra.harness_proxy.media import Attachments
from palestra.harness_proxy.roles import with_roles
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.journal import Journal
from palestra.trajectories.model import Call, Failure, Mode, Node, Sampling

T = TypeVar("T")

_REPLAYS = 16
"""Latest replies that can be given again to a caller who missed them."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What a closed session leaves behind, ready to become a Trajectory."""

    nodes: tuple[Node, ...]
    calls: tuple[Call, ...]
    tools: Mapping[str, tuple[Mapping[str, Any], ...]]
    findings: tuple[str, ...]
    stops: tuple[str, ...]
    """Budgets that ran out: max_calls, max_path_tokens, context."""
    failure: Failure | None
    """Set where an answer of ours failed and the harness did not get it by asking again: no reward may
    exist."""
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    """Attachments of the messages by SHA-256, for the Trajectory."""


@dataclass(eq=False)
class Session:
    """An open capability: whoever has the key samples into this rollout. Made by `Proxy.open`."""

    key: str
    rollout_id: str
    mode: Mode
    sampling: Sampling
    base_url: str
    """For clients that send the key: `OpenAI(base_url=session.base_url, api_key=session.key)`."""
    path_url: str
    """The same for clients that cannot set a key."""
    max_calls: int | None = None
    max_path_tokens: int | None = None
    graph: TokenGraph = field(default_factory=TokenGraph)
    history: History = field(default_factory=History)
    attachments: Attachments = field(default_factory=Attachments)
    """Images that the harness sent, where the model takes any."""
    journal: Journal | None = None
    """Where calls are kept on disk before they are answered; None keeps them in memory alone."""
    observer: Observer | None = None
    """Is told of each request that continues a recorded reply, before it is answered."""
    calls: list[Call] = field(default_factory=list)
    in_flight: dict[str, asyncio.Future[Reply]] = field(default_factory=dict)
    """By digest of the request body."""
    followers: Counter[str] = field(default_factory=Counter)
    """Callers who wait for a call that another one began, by the same digest."""
    closed: bool = False
    _generating: set[asyncio.Task[Any]] = field(default_factory=set)
    _opened_s: float = field(default_factory=time.perf_counter)
    _next_seq: int = 0
    _undelivered: set[int] = field(default_factory=set)
    _replays: OrderedDict[str, Reply] = field(default_factory=OrderedDict)
    _tools: dict[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    _last_tools: tuple[Any, str | None] = ((), None)
    _findings: dict[str, None] = field(default_factory=dict)
    _stops: dict[str, None] = field(default_factory=dict)
    _outages: dict[str, Failure] = field(default_factory=dict)
    _failure: Failure | None = None

    @property
    def root_url(self) -> str:
        """`base_url` without its version, for clients that write the version themselves (Anthropic,
        Gemini)."""
        return self.base_url.removesuffix("/v1")

    @property
    def path_root_url(self) -> str:
        """`path_url` without its version."""
        return self.path_url.removesuffix("/v1")

    # Calls.

    def elapsed_s(self) -> float:
        """Seconds since the session was opened."""
        return time.perf_counter() - self._opened_s

    def claim(self) -> int:
        """The number of the next call. Raises UnknownKeyError once the session is closed."""
        if self.closed:
            raise UnknownKeyError("this session was closed")
        self._next_seq += 1
        return self._next_seq - 1

    def release(self, seq: int) -> None:
        """Call `seq` came to nothing. If it was the latest, its number (and so its seed) goes to the next
        one."""
        if seq == self._next_seq - 1:
            self._next_seq = seq

    def record(self, call: Call, reply: Reply) -> None:
        """Keep a committed call, until told otherwise as one that reached nobody."""
        self.calls.append(call)
        self._undelivered.add(call.seq)
        self._replays[call.request_sha256] = reply
        self._replays.move_to_end(call.request_sha256)
        if len(self._replays) > _REPLAYS:
            self._replays.popitem(last=False)

    def is_followed(self, digest: str) -> bool:
        """Whether somebody waits for a call that another caller began."""
        return self.followers[digest] > 0

    def keep(self) -> None:
        """Put every call so far on disk, where there is a journal. Raises StoreFullError."""
        if self.journal is not None:
            self.journal.keep(self.graph.nodes, self.calls, self._tools, self._undelivered)

    def mark_delivered(self, seq: int | None) -> None:
        """The reply of call `seq` reached its caller; None where nothing was sampled."""
        if seq is not None:
            self._undelivered.discard(seq)

    def replay(self, digest: str, retried: bool) -> Reply | None:
        """The recorded reply to a body that was answered before, if this is the same caller asking again.

        That is so if the caller says it (`retried`) or if the first answer reached nobody.
        """
        reply = self._replays.get(digest)
        return reply if reply is not None and (retried or reply.seq in self._undelivered) else None

    def answered_before(self, digest: str) -> int | None:
        """`Call.seq` of the latest answer to the same body."""
        reply = self._replays.get(digest)
        return reply.seq if reply is not None else None

    def replies(self) -> list[Continued]:
        """All replies that reached their caller, in order, as if nothing had come after them."""
        recorded = sorted(self.recording().calls, key=lambda call: call.seq)
        nodes = self.graph.nodes
        return [Continued(c.seq, nodes[c.node_id].message, (), c.role) for c in recorded if c.delivered]

    def tools_sha256(self, tools: Sequence[Mapping[str, Any]]) -> str | None:
        """Name a list of tools by its digest and keep it; None for no tools. Raises BadRequestError."""
        if tools == self._last_tools[0]:
            return self._last_tools[1]
        try:
            body = orjson.dumps(tools, option=orjson.OPT_SORT_KEYS)
        except TypeError as error:
            raise BadRequestError(f"tools cannot be read: {error}") from error
        digest = hashlib.sha256(body).hexdigest() if tools else None
        if digest is not None:
            self._tools.setdefault(digest, tuple(tools))
        self._last_tools = (tools, digest)
        return digest

    def close(self) -> None:
        """Take no more calls, and cancel those in flight; their callers get UnknownKeyError."""
        self.closed = True
        for task in self._generating:
            task.cancel()

    async def until_closed(self, work: Awaitable[T]) -> T:
        """What `work` gives. Where the session is closed before, `work` is cancelled: raises UnknownKeyError."""
        task = asyncio.current_task()
        assert task is not None
        self._generating.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            if self.closed:
                task.uncancel()
                raise UnknownKeyError("this session was closed") from None
            raise
        finally:
            self._generating.discard(task)

    # Budgets, findings, failures.

    def calls_are_spent(self) -> bool:
        """Whether `max_calls` were made or are being made."""
        return self.max_calls is not None and self._next_seq >= self.max_calls

    @property
    def stops(self) -> tuple[str, ...]:
        """Budgets that ran out so far."""
        return tuple(self._stops)

    @property
    def failed(self) -> bool:
        """Whether something broke for good; a call that could not be served now is not that."""
        return self._failure is not None

    def stop(self, why: str) -> None:
        """A budget ran out."""
        self._stops[why] = None
        self.note(f"stopped: {why}")

    def note(self, finding: str) -> None:
        """Keep something that a person should know, once."""
        self._findings[finding] = None

    def fail(self, failure: Failure) -> None:
        """Nothing that this session measured can be trusted. The first cause is kept."""
        self._failure = self._failure or failure

    def outage(self, asked: str, failure: Failure) -> None:
        """What was asked for could not be served now. Unless it is served later, the session failed."""
        self._outages[asked] = failure
        self.note(f"{failure.stage}: {failure.message}")

    @property
    def is_owing(self) -> bool:
        """Whether something could not be served yet."""
        return bool(self._outages)

    def forgive(self, asked: str) -> None:
        """It was served after all."""
        self._outages.pop(asked, None)

    def recording(self) -> Recording:
        """Everything recorded so far."""
        calls = (
            replace(c, delivered=False) if c.seq in self._undelivered else c
            for c in with_roles(self.graph, self.calls)
        )
        failure = self._failure or next(iter(self._outages.values()), None)
        return Recording(
            tuple(self.graph.nodes),
            tuple(calls),
            dict(self._tools),
            tuple(self._findings),
            tuple(self._stops),
            failure,
            self.attachments.blobs,
        )
