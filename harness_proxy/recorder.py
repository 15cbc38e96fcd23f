"""From a request to a recorded reply: find the history, build the prompt, sample, commit, and only then
answer.

The prompt comes from the bridge (the recorded ids of the path, and only the new messages rendered) where the
history continues a recorded reply, else from a full render. Either way the graph gets exactly what the engine
was given and what it gave. Sampling is the session's; `max_tokens` of the request counts where it is smaller,
and the seed of call k is a fixed function of the session's seed and k.

One body is sampled once: a second request with the same body while the first is in flight gets the same
reply, and so does one that says it is a retry, or that follows a reply which reached nobody. To draw several
samples of one history at once, let the bodies differ, for example in `seed`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from palestra.harness_proxy.continued import Continued
from palestra.harness_proxy.dialects.base import Dialect, Reply, Request
from palestra.harness_proxy.engines.base import (
    Capability,
    Engine,
    EngineError,
    EngineFullError,
    EngineUnavailableError,
    Generation,
    PromptTooLongError,
)
from palestra.harness_proxy.errors import (
    BadRequestError,
    ContextLengthError,
    EngineBusyError,
    EngineFailedError,
    QueueFullError,
    RecordingError,
    RenderingError,
)
from palestra.harness_proxy.history import Point
from palestra.harness_proxy.rendering import Prompt as RenderedPrompt
from palestra.harness_proxy.rendering import Rendering, Tools
from palestra.harness_proxy.replies import name_tool_calls, reply_id, stopped
from palestra.harness_proxy.roles import role_of_words
from palestra.harness_proxy.sessions import Session
from palestra.trajectories.errors import StoreFullError
from palestra.trajectories.graph import Segment
from palestra.trajectories.model import Call, Drift, IntArray, Message, Sampling


@dataclass(slots=True)
class _Prompt:
    ids: list[int]
    array: IntArray
    segments: tuple[Segment, ...]
    mode: Literal["bridge", "render"]
    drift: Drift | None
    after: int | None
    """The node that a bridged prompt continues."""
    cached: int = 0
    """Tokens that the prompt took over from the record."""


@dataclass(slots=True)
class Work:
    """What one call carries from step to step."""

    session: Session
    dialect: str
    digest: str
    request: Request
    tools_sha256: str | None
    point: Point
    started_s: float


class Recorder:
    """Answers calls of all sessions with one engine. `capability` is what the engine was probed to give."""

    capability: Capability

    def __init__(self, engine: Engine, rendering: Rendering, retry_after_s: float) -> None:
        self._engine = engine
        self._rendering = rendering
        self._retry_after_s = retry_after_s

    async def answer(
        self, session: Session, dialect: Dialect, request: Request, digest: str, retried: bool
    ) -> Reply:
        """The reply to `request`, recorded. Raises RequestError."""
        running = session.in_flight.get(digest)
        if running is not None:
            session.note("a request was repeated while it was in flight: one sample, one reply")
            session.followers[digest] += 1
            try:
                return await asyncio.shield(running)
            finally:
                session.followers[digest] -= 1
        replay = session.replay(digest, retried)
        if replay is not None:
            session.note(f"the reply of call {replay.seq} was given again to a caller who missed it")
            return replay
        return await self._lead(session, dialect, request, digest)

    def keep(self, session: Session) -> None:
        """Put the session's calls on disk: before the first byte of a reply. Raises RecordingError."""
        try:
            session.keep()
        except StoreFullError as error:
            raise RecordingError(str(error), self._retry_after_s) from error

    def count(self, dialect: Dialect, request: Request) -> int:
        """Tokens of a prompt that is rendered in full. Raises BadRequestError."""
        messages = [message for turn in request.turns for message in dialect.read(turn)]
        return len(self._rendered(messages, request.tools).ids)

    async def _lead(self, session: Session, dialect: Dialect, request: Request, digest: str) -> Reply:
        """Answer, and let followers of the same digest share the outcome."""
        outcome = session.in_flight[digest] = asyncio.get_running_loop().create_future()
        try:
            reply = await self._serve(session, dialect, request, digest)
        except BaseException as error:
            outcome.set_exception(_for_followers(error))
            outcome.exception()  # nobody may be following
            raise
        else:
            outcome.set_result(reply)
            return reply
        finally:
            del session.in_flight[digest]

    async def _serve(self, session: Session, dialect: Dialect, request: Request, digest: str) -> Reply:
        started_s = session.elapsed_s()
        for name in request.unapplied:
            session.note(f"{name} is on record and was not applied: sampling belongs to the trainer")
        if session.calls_are_spent():
            return stopped(session, "max_calls", f"The budget of {session.max_calls} calls is used up.", 0)
        tools_sha256 = session.tools_sha256(request.tools)
        read = self._reader(session, dialect)
        point = session.history.walk(tools_sha256, request.turns, read, dialect.reply_id)
        spent = await _observed(session, request, point)
        if spent is not None:
            return stopped(session, spent, f"The budget is used up: {spent}.", 0)
        work = Work(session, dialect.name, digest, request, tools_sha256, point, started_s)
        return await self._reply_to(work)

    def _reader(self, session: Session, dialect: Dialect) -> Callable[[Any], Sequence[Message]]:
        """What makes messages of the items of a history; without attachments, images are refused."""
        return dialect.read

    async def _reply_to(self, work: Work) -> Reply:
        session, prompt = work.session, self._prompt(work)
        limit, why = self._path_limit(session)
        if len(prompt.ids) >= limit:
            return stopped(session, why, f"The budget of {limit} tokens is used up.", len(prompt.ids))
        return await self._sample(work, prompt, limit)

    def _prompt(self, work: Work) -> _Prompt:
        return self._bridge(work) or self._render(work)

    def _rendered(self, messages: list[Message], tools: Tools) -> RenderedPrompt:
        try:
            return self._rendering.render(messages, tools)
        except RenderingError as error:
            raise BadRequestError(str(error)) from error

    def _bridge(self, work: Work) -> _Prompt | None:
        """Recorded ids plus the new messages, where those are all that is new."""
        reply, tail = work.point.since_reply()
        messages = [p.message for p in tail if p.message is not None]
        if reply is None or reply.node_id is None or not tail or any(m.role == "assistant" for m in messages):
            return None
        graph = work.session.graph
        path = graph.path_ids(reply.node_id)
        ids, cut = path.tolist(), len(path) - len(graph.nodes[reply.node_id].logprobs)
        prompt = self._rendering.bridge(ids[:cut], ids[cut:], messages, work.request.tools)
        if prompt is None:
            return None
        array = np.concatenate([path, np.array(prompt.ids[len(path) :], np.int32)])
        return _Prompt(prompt.ids, array, prompt.segments, "bridge", None, reply.node_id, len(path))

    def _render(self, work: Work) -> _Prompt:
        prompt = self._rendered(work.point.messages(), work.request.tools)
        array = np.array(prompt.ids, np.int32)
        reply, tail = work.point.since_reply()
        drift = next((p.drift for p in tail if p.drift is not None), None)
        if drift is None and reply is not None and reply.node_id is not None:
            drift = _token_drift(work.session.graph.path_ids(reply.node_id), array)
        return _Prompt(prompt.ids, array, prompt.segments, "render", drift, None)

    def _path_limit(self, session: Session) -> tuple[int, str]:
        budget, context = session.max_path_tokens, self.capability.context_tokens
        return (
            (budget, "max_path_tokens") if budget is not None and budget <= context else (context, "context")
        )

    async def _sample(self, work: Work, prompt: _Prompt, limit: int) -> Reply:
        session = work.session
        seq = session.claim()
        try:
            sampling = self._sampling(session, seq, work.request, limit - len(prompt.ids))
            generation = await self._generate(session, prompt.ids, sampling)
            return self._commit(work, prompt, seq, sampling, generation)
        except BaseException:
            session.release(seq)
            raise

    def _sampling(self, session: Session, seq: int, request: Request, room: int) -> Sampling:
        of_session = session.sampling
        return Sampling(
            temperature=of_session.temperature,
            top_p=of_session.top_p,
            top_k=of_session.top_k,
            max_tokens=min(of_session.max_tokens, room, request.max_tokens or room),
            stop_token_ids=of_session.stop_token_ids or self._rendering.stop_token_ids,
            seed=call_seed(of_session.seed, seq),
        )

    async def _generate(self, session: Session, ids: list[int], sampling: Sampling) -> Generation:
        """Sample; the one place where an engine's errors become answers."""
        try:
            generation = await session.until_closed(
                self._engine.generate(ids, sampling, session=session.rollout_id)
            )
        except PromptTooLongError as error:
            session.note(f"engine: {error}")
            raise ContextLengthError(str(error), error.prompt_tokens, error.limit) from error
        except EngineFullError as error:
            raise QueueFullError(str(error), self._retry_after_s) from error
        except EngineUnavailableError as error:
            raise EngineBusyError(str(error), self._retry_after_s) from error
        except EngineError as error:
            raise EngineFailedError(str(error)) from error
        if generation.finish_reason == "abort":
            raise EngineBusyError("the engine gave the reply up half-way", self._retry_after_s)
        return generation

    def _commit(
        self, work: Work, prompt: _Prompt, seq: int, sampling: Sampling, generation: Generation
    ) -> Reply:
        session, request = work.session, work.request
        sampled, logprobs = _arrays(generation)
        parsed, parse_status = self._rendering.parse(generation.token_ids, prompt.ids, request.tools)
        message = name_tool_calls(parsed, session.rollout_id, seq)
        node_id = session.graph.commit(
            prompt.array, prompt.segments, message, sampled, logprobs, generation.versions, prompt.after
        )
        session.history.record(work.point, message, node_id, reply_id(seq, work.digest))
        call = Call(
            seq=seq,
            dialect=work.dialect,
            request_sha256=work.digest,
            tools_sha256=work.tools_sha256,
            prompt_mode=prompt.mode,
            requested=request.requested,
            effective=sampling,
            logprob_semantics=self.capability.logprob_semantics,
            policy_version=generation.versions[0][1],
            finish_reason=generation.finish_reason,
            parse_status=parse_status,
            node_id=node_id,
            prompt_tokens=len(prompt.ids),
            started_s=work.started_s,
            duration_s=session.elapsed_s() - work.started_s,
            role=request.role or role_of_words(work.point),
            retry_of=session.answered_before(work.digest),
            drift=prompt.drift,
        )
        reply = self._reply(work, prompt, call, message, generation)
        session.record(call, reply)
        return reply

    def _reply(
        self, work: Work, prompt: _Prompt, call: Call, message: Message, generation: Generation
    ) -> Reply:
        ids, logprobs = generation.token_ids, generation.logprobs
        texts = [self._rendering.decode([i]) for i in ids] if work.request.logprobs else []
        return Reply(
            id=reply_id(call.seq, work.digest),
            message=message,
            finish_reason=generation.finish_reason,
            prompt_tokens=len(prompt.ids),
            completion_tokens=len(ids),
            seq=call.seq,
            logprobs=tuple(zip(texts, logprobs, strict=False)),
            prompt_ids=tuple(prompt.ids) if work.request.token_ids else (),
            token_ids=tuple(ids) if work.request.token_ids else (),
            cached_tokens=prompt.cached,
            reasoning_tokens=self._rendering.reasoning_tokens(message, ids),
        )


async def _observed(session: Session, request: Request, point: Point) -> str | None:
    """Tell the session's observer, if there is one, which reply is continued by what."""
    reply, since = point.since_reply()
    if session.observer is None or reply is None or reply.message is None:
        return None
    call = next((c for c in reversed(session.calls) if c.node_id == reply.node_id), None)
    if call is None:
        return None
    messages = tuple(p.message for p in since if p.message is not None)
    role = request.role or role_of_words(point)
    return await session.observer(Continued(call.seq, reply.message, messages, role))


def _arrays(generation: Generation) -> tuple[IntArray, Any]:
    sampled = np.array(generation.token_ids, np.int32)
    logprobs = np.array(generation.logprobs, np.float32)
    if not sampled.size or sampled.shape != logprobs.shape or not math.isfinite(np.add.reduce(logprobs)):
        raise EngineFailedError(
            f"the engine sent {sampled.size} tokens with {logprobs.size} log-probabilities, "
            f"{int(np.isfinite(logprobs).sum())} of them finite: it must send a token, and one for each"
        )
    return sampled, logprobs


def call_seed(seed: int | None, seq: int) -> int | None:
    """The seed of call `seq`, a fixed function of the session's; None where that has none."""
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed}/{seq}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _token_drift(path: IntArray, prompt: IntArray) -> Drift | None:
    size = min(len(path), len(prompt))
    differing = np.flatnonzero(path[:size] != prompt[:size])
    if len(differing):
        return Drift("tokens", int(differing[0]))
    return Drift("tokens", size) if len(path) > len(prompt) else None


def _for_followers(error: BaseException) -> BaseException:
    gone = isinstance(error, asyncio.CancelledError)
    return EngineBusyError("the first request with this body was cancelled", 0.0) if gone else error
