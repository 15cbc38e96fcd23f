"""The HTTP side of the proxy: key, body, dialect, status, and whether the reply reached its caller.

The key comes as `Authorization: Bearer <key>`, as `x-api-key`, as `x-goog-api-key`, as `?key=` or in the
path, /s/<key>/v1/...; a key in the path is the only one that counts, of several others the first that opens a
session. What fails on our side is answered before any byte of a reply, with the status that makes SDKs ask
again (429, 503) or give up (500 with x-should-retry: false), and is put on the session's account; a caller who
was kept waiting (`waiting.py`) is told in its stream and cut off. Every reply
says which call it is in the header `x-palestra-call`; one that a budget wrote has `x-palestra-stop` instead.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs

import orjson

from palestra.harness_proxy.asgi import Receive, Scope, Send, headers_of, read_body, respond
from palestra.harness_proxy.dialects import DIALECTS
from palestra.harness_proxy.dialects.base import Dialect, Reply, Request
from palestra.harness_proxy.errors import (
    BadRequestError,
    EngineBusyError,
    EngineFailedError,
    InternalError,
    LateBodyError,
    MethodError,
    NotFoundError,
    PausedError,
    QueueFullError,
    RecordingError,
    RequestError,
    UnknownKeyError,
    UpgradeError,
)
from palestra.harness_proxy.gate import Gate
from palestra.harness_proxy.recorder import Recorder
from palestra.harness_proxy.roles import role_of_headers
from palestra.harness_proxy.sessions import Session
from palestra.harness_proxy.waiting import EVENTS, Patience, Waiting
from palestra.trajectories.model import Failure

_JSON = b"application/json"
_log = logging.getLogger(__name__)


class CutError(Exception):
    """A reply has begun and failed: it must not look as if it had come to its end."""


class Endpoint:
    """The ASGI application. `sessions` is the live table of open sessions by key."""

    def __init__(
        self,
        recorder: Recorder,
        sessions: Mapping[str, Session],
        gate: Gate,
        model_name: str,
        max_body_bytes: int,
        patience: Patience,
    ) -> None:
        self._patience = patience
        self._recorder = recorder
        self._sessions = sessions
        self._gate = gate
        self._model_name = model_name
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        key, path = _split_path(scope["path"])
        posted = scope["method"] == "POST"
        dialect = next((d for d in DIALECTS if d.serves(path)), None)
        counting = next((d for d in DIALECTS if d.counts(path)), None) if dialect is None else None
        try:
            if dialect is not None and posted:
                await self._call(dialect, key, path, scope, receive, send)
            elif counting is not None and posted:
                await self._count(counting, key, path, scope, receive, send)
            else:
                await self._aside(path, scope, send)
        except CutError:  # a reply that is not ended is cut by the server
            return
        except RequestError as error:
            await _refuse(send, dialect or counting or _dialect_near(path), error)

    async def _call(
        self, dialect: Dialect, key: str | None, path: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = headers_of(scope)
        session = self._session(key, headers, scope)
        body = await self._body(receive, headers)
        with self._gate, Waiting(receive, send, self._patience) as caller:
            try:
                payload, kind, reply = await self._answer(
                    session, dialect, body, _target(path, scope), headers, caller
                )
                if not caller.has_left():
                    await caller.answer(200, payload, {b"content-type": kind} | _marks(reply))
                    session.mark_delivered(reply.seq)
            except RequestError as error:
                if not caller.began:
                    raise
                await caller.break_off(dialect.stream_error(error))
                raise CutError from error
            except asyncio.CancelledError:
                if not caller.abandoned:
                    raise
                self._task_goes_on()
                session.note("a caller left before its reply was sampled: the call was given up")

    @staticmethod
    def _task_goes_on() -> None:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()

    async def _body(self, receive: Receive, headers: Mapping[bytes, bytes]) -> bytes:
        """The request's body. Raises BadRequestError, BodyTooLargeError and LateBodyError."""
        try:
            return await read_body(receive, headers, self._max_body_bytes, self._patience.body_s)
        except TimeoutError as error:
            raise LateBodyError(f"the body did not arrive within {self._patience.body_s:g} s") from error

    async def _count(
        self, dialect: Dialect, key: str | None, path: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """How long a prompt would be; nothing is sampled and nothing recorded."""
        headers = headers_of(scope)
        self._session(key, headers, scope)
        body = await self._body(receive, headers)
        tokens = self._recorder.count(dialect, dialect.decode(_parse(body), _target(path, scope)))
        await respond(send, 200, dialect.encode_count(tokens), {b"content-type": _JSON})

    async def _answer(
        self,
        session: Session,
        dialect: Dialect,
        body: bytes,
        target: str,
        headers: Mapping[bytes, bytes],
        caller: Waiting,
    ) -> tuple[bytes, bytes, Reply]:
        """(payload, content type, reply). What fails between two transfers is put on the session's
        account."""
        digest = hashlib.sha256(body).hexdigest()
        retried = headers.get(b"x-stainless-retry-count", b"0") != b"0"
        try:
            request = dialect.decode(_parse(body), target)
            self._gate.check()
            role = role_of_headers(headers)
            if role is not None:
                request = replace(request, role=role)
            caller.expect(dialect.keepalive if request.stream else b"", lambda: session.is_followed(digest))
            reply = await self._recorder.answer(session, dialect, request, digest, retried)
            self._recorder.keep(session)
            if session.is_owing:
                session.forgive(_asked(request))
            if request.stream:
                return dialect.stream(request, reply), EVENTS, reply
            return dialect.encode(request, reply), _JSON, reply
        except (EngineBusyError, PausedError, QueueFullError) as error:
            session.outage(_asked(request), Failure("provider", "generate", str(error), retryable=True))
            raise
        except RecordingError as error:
            session.outage(_asked(request), Failure("proxy", "record", str(error), retryable=True))
            raise
        except EngineFailedError as error:
            session.fail(Failure("provider", "generate", str(error)))
            raise
        except RequestError as error:
            session.note(f"answered {error.status}: {error}")
            raise
        except Exception as error:  # the last line: whatever it is, this rollout must not be scored
            _log.exception("rollout %s: a call failed inside the proxy", session.rollout_id)
            session.fail(Failure("proxy", "call", f"{type(error).__name__}: {error}"))
            raise InternalError("the proxy failed, the rollout is marked as failed") from error

    async def _aside(self, path: str, scope: Scope, send: Send) -> None:
        """Requests that sample nothing: probes, model lists, and mistakes. None of them is recorded."""
        method = scope["method"]
        if headers_of(scope).get(b"upgrade", b"").lower() == b"websocket":
            raise UpgradeError("WebSockets are not served here, use POST")
        replies = (d.side_reply(method, path, self._model_name) for d in DIALECTS)
        body = next((r for r in replies if r is not None), None)
        if body is not None:
            await respond(send, 200, body, {b"content-type": _JSON})
        elif any(d.serves(path) or d.counts(path) for d in DIALECTS):
            raise MethodError(f"{path} takes POST, not {method}")
        else:
            raise NotFoundError(
                f"nothing is served at {path}: POST to /v1/chat/completions, /v1/responses, /v1/messages or "
                "/v1beta/models/<model>:generateContent"
            )

    def _session(self, key: str | None, headers: Mapping[bytes, bytes], scope: Scope) -> Session:
        keys = _keys_of(headers, scope) if key is None else [key]
        session = next((self._sessions[k] for k in keys if k in self._sessions), None)
        if session is None:
            raise UnknownKeyError("no open session has this key: use the key and URL of an open session")
        return session


def _split_path(path: str) -> tuple[str | None, str]:
    """(key, path) of /s/<key>/<path>; (None, path) of any other."""
    if not path.startswith("/s/"):
        return None, path.rstrip("/") or "/"
    key, _, rest = path[3:].partition("/")
    return key, "/" + rest.rstrip("/")


def _target(path: str, scope: Scope) -> str:
    return f"{path}?{scope.get('query_string', b'').decode('latin-1')}"


def _dialect_near(path: str) -> Dialect:
    """Whose words to use for an error at a path that nobody serves."""
    return next((d for d in DIALECTS if path.startswith(d.prefix)), DIALECTS[0])


def _keys_of(headers: Mapping[bytes, bytes], scope: Scope) -> Iterator[str]:
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        yield token.strip().decode("latin-1")
    for name in (b"x-api-key", b"x-goog-api-key"):
        yield headers.get(name, b"").decode("latin-1")
    yield from parse_qs(scope.get("query_string", b"").decode("latin-1")).get("key", ())


def _parse(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from error


def _asked(request: Request) -> str:
    """Names what is asked for, the same when it is asked again: codex then sends other metadata."""
    return hashlib.sha256(orjson.dumps([request.turns, request.tools])).hexdigest()


def _marks(reply: Reply) -> dict[bytes, bytes]:
    if reply.seq is None:
        return {b"x-palestra-stop": (reply.stop or "").encode()}
    return {b"x-palestra-call": b"%d" % reply.seq}


async def _refuse(send: Send, dialect: Dialect, error: RequestError) -> None:
    headers = {b"content-type": _JSON}
    if error.retry_after_s is not None:
        # Whole seconds, or codex does not ask again; the SDKs of OpenAI and Anthropic take milliseconds too.
        headers[b"retry-after"] = b"%d" % max(1, math.ceil(error.retry_after_s))
        headers[b"retry-after-ms"] = b"%d" % (1000 * error.retry_after_s)
    if isinstance(error, EngineFailedError | InternalError):
        headers[b"x-should-retry"] = b"false"
    await respond(send, dialect.status(error), dialect.error(error), headers)
