"""The recorder for a model of which only text is known: messages out, a message back, no tokens.

Sessions, retries, budgets of calls, roles and histories are those of the token recorder; the graph has a node
per message, without tokens, so nothing of it can be trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from palestra.harness_proxy.dialects.base import Dialect, Reply, Request
from palestra.harness_proxy.engines.base import (
    EngineError,
    EngineUnavailableError,
    InvalidRequestError,
    PromptTooLongError,
)
from palestra.harness_proxy.engines.hosted import HostedEngine, TextReply
from palestra.harness_proxy.errors import (
    BadRequestError,
    ContextLengthError,
    EngineBusyError,
    EngineFailedError,
)
from palestra.harness_proxy.recorder import Recorder, Work, call_seed
from palestra.harness_proxy.replies import name_tool_calls, reply_id
from palestra.harness_proxy.roles import role_of_words
from palestra.harness_proxy.sessions import Session
from palestra.trajectories.model import Call, Message, Sampling

_CHARACTERS_PER_TOKEN = 4


class TextRecorder(Recorder):
    """Answers calls of all sessions with one hosted model."""

    def __init__(self, engine: HostedEngine, retry_after_s: float) -> None:
        self._hosted = engine
        self._retry_after_s = retry_after_s

    def count(self, dialect: Dialect, request: Request) -> int:
        """An estimate, at four characters a token: the model's tokenizer is not known here."""
        messages = [m for turn in request.turns for m in dialect.read(turn)]
        return sum(len(m.content) for m in messages) // _CHARACTERS_PER_TOKEN + len(messages)

    def _reader(self, session: Session, dialect: Dialect) -> Callable[[Any], Sequence[Message]]:
        return partial(dialect.read, attachments=session.attachments)

    async def _reply_to(self, work: Work) -> Reply:
        session = work.session
        seq = session.claim()
        try:
            sampling = _sampling(session, seq, work.request)
            said = await self._said(work, sampling)
            return self._record(work, seq, sampling, said)
        except BaseException:
            session.release(seq)
            raise

    async def _said(self, work: Work, sampling: Sampling) -> TextReply:
        """Ask; the one place where the engine's errors become answers."""
        session, messages = work.session, work.point.messages()
        try:
            asked = self._hosted.chat(messages, work.request.tools, sampling, session.attachments)
            return await session.until_closed(asked)
        except PromptTooLongError as error:
            raise ContextLengthError(str(error), error.prompt_tokens, error.limit) from error
        except EngineUnavailableError as error:
            raise EngineBusyError(str(error), self._retry_after_s) from error
        except InvalidRequestError as error:
            raise BadRequestError(str(error)) from error
        except EngineError as error:
            raise EngineFailedError(str(error)) from error

    def _record(self, work: Work, seq: int, sampling: Sampling, said: TextReply) -> Reply:
        session = work.session
        message = name_tool_calls(said.message, session.rollout_id, seq)
        node_id = session.graph.commit_text(work.point.messages(), message)
        name = reply_id(seq, work.digest)
        session.history.record(work.point, message, node_id, name)
        call = Call(
            seq=seq,
            dialect=work.dialect,
            request_sha256=work.digest,
            tools_sha256=work.tools_sha256,
            prompt_mode="chat",
            requested=work.request.requested,
            effective=sampling,
            logprob_semantics="none",
            policy_version=0,
            finish_reason=said.finish_reason,
            parse_status=said.parse_status,
            node_id=node_id,
            prompt_tokens=said.prompt_tokens,
            started_s=work.started_s,
            duration_s=session.elapsed_s() - work.started_s,
            role=work.request.role or role_of_words(work.point),
            retry_of=session.answered_before(work.digest),
        )
        reply = Reply(
            id=name,
            message=message,
            finish_reason=said.finish_reason,
            prompt_tokens=said.prompt_tokens,
            completion_tokens=said.completion_tokens,
            seq=seq,
            cached_tokens=said.cached_tokens,
            reasoning_tokens=said.reasoning_tokens,
        )
        session.record(call, reply)
        return reply


def _sampling(session: Session, seq: int, request: Request) -> Sampling:
    limit = min(session.sampling.max_tokens, request.max_tokens or session.sampling.max_tokens)
    return replace(session.sampling, max_tokens=limit, seed=call_seed(session.sampling.seed, seq))
