"""The proxy: any harness on one side, an inference engine on the other, every token on record.

    proxy = Proxy(engine, Rendering.load(model_dir))
    await proxy.start()
    session = proxy.open("rollout-1", mode="train", sampling=Sampling(max_tokens=512))
    ... a harness talks to session.base_url with session.key, in its own API ...
    recording = proxy.close(session)

A request goes through `endpoint.py` (HTTP: key, body, dialect, status), `recorder.py` (prompt, engine, token
graph), `history.py` (which recorded reply does it continue), `rendering.py` (messages to tokens and back) and
`sessions.py` (budgets, retries, what is on record). The proxy listens on one port inside the running event
loop; it starts no thread and keeps everything in memory until the session is closed.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from pathlib import Path

from palestra.harness_proxy.endpoint import Endpoint, Gate
from palestra.harness_proxy.engines.base import Capability, Engine
from palestra.harness_proxy.engines.hosted import HostedEngine
from palestra.harness_proxy.errors import CaptureError, ProxyStateError, RenderingError
from palestra.harness_proxy.history import DroppedReasoning, History
from palestra.harness_proxy.listener import Listener
from palestra.harness_proxy.recorder import Recorder
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.sessions import Recording, Session
from palestra.harness_proxy.text_recorder import TextRecorder
from palestra.trajectories.model import CaptureLevel, Mode, Sampling

_LEVELS: tuple[CaptureLevel, ...] = ("text", "logprobs", "tokens")


class Proxy:
    """One recorder for any number of sessions. Use it from one event loop."""

    def __init__(
        self,
        engine: Engine,
        rendering: Rendering | None = None,
        *,
        model_name: str = "palestra",
        max_body_bytes: int = 32 * 2**20,
        retry_after_s: float = 1.0,
    ) -> None:
        """A model that takes token ids needs its `rendering`; a HostedEngine, of which only text is known, takes
        none. `retry_after_s` is what callers are told to wait while the proxy is paused or the engine
        unavailable."""
        self.engine = engine
        self.rendering = rendering
        self._sessions: dict[str, Session] = {}
        self._gate = Gate(retry_after_s)
        self._capability: Capability | None = None
        self._listener: Listener | None = None
        self._unix: Listener | None = None
        self._socket_dir: tempfile.TemporaryDirectory[str] | None = None
        self._opening = asyncio.Lock()
        self._recorder = _recorder(engine, rendering, retry_after_s)
        self.app = Endpoint(self._recorder, self._sessions, self._gate, model_name, max_body_bytes)
        """The ASGI application, for tests without a socket: call probe() first."""

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Probe the engine and listen; port 0 takes a free one.

        Raises EngineError when the engine does not answer, OSError when the port is taken, ProxyStateError
        when the proxy listens already.
        """
        if self._listener is not None:
            raise ProxyStateError(f"this proxy listens already, at {self.base_url}")
        await self.probe()
        self._listener = await Listener.open(self.app, host, port)

    async def probe(self) -> Capability:
        """Ask the engine what it gives. `start` does it; alone it is enough to use `app`."""
        self._capability = await self.engine.probe()
        self._recorder.capability = self._capability
        return self._capability

    @property
    def capability(self) -> Capability:
        """What the engine was seen to give. Raises ProxyStateError before start()."""
        if self._capability is None:
            raise ProxyStateError("the engine was not probed yet: await proxy.start() first")
        return self._capability

    @property
    def base_url(self) -> str:
        """http://host:port, without a path; http://palestra while the proxy does not listen."""
        return self._listener.url if self._listener is not None else "http://palestra"

    async def unix_socket(self) -> Path:
        """A unix socket of the same proxy, for places without a network; made on the first call.

        It lies in a directory that only this user can enter. Raises ProxyStateError before start().
        """
        if self._listener is None:
            raise ProxyStateError("the proxy does not listen: await proxy.start() first")
        async with self._opening:
            if self._socket_dir is None:
                self._socket_dir = tempfile.TemporaryDirectory(prefix="palestra-proxy-")
                self._unix = await Listener.open_unix(self.app, Path(self._socket_dir.name) / "socket")
            return Path(self._socket_dir.name) / "socket"

    async def aclose(self) -> None:
        """Close every session and stop listening. The engine stays open. Calling it twice is fine."""
        for session in list(self._sessions.values()):
            self.close(session)
        for listener in filter(None, (self._listener, self._unix)):
            await listener.aclose()
        self._listener = self._unix = None
        if self._socket_dir is not None:
            self._socket_dir.cleanup()
            self._socket_dir = None

    def open(
        self,
        rollout_id: str,
        *,
        mode: Mode,
        sampling: Sampling,
        max_calls: int | None = None,
        max_path_tokens: int | None = None,
        train_requires: CaptureLevel = "tokens",
        dropped_reasoning: DroppedReasoning = "splice",
    ) -> Session:
        """A fresh session with an unguessable key.

        `max_calls` bounds sampled replies, `max_path_tokens` the prompt and reply of one call together; past
        them the harness gets an assistant message that ends its loop. `dropped_reasoning` is what a history
        means that brings a sampled reply back without its reasoning: "splice" continues the reply as it was
        sampled, reasoning included, "fork" renders it as the harness sent it. Raises CaptureError for train mode on
        an engine whose capture level is below `train_requires`.
        """
        level = self.capability.capture_level
        if mode == "train" and _LEVELS.index(level) < _LEVELS.index(train_requires):
            raise CaptureError(
                f"train mode needs an engine that gives {train_requires}, {self.capability.model} was seen "
                f"to give {level}: use an engine that takes and gives token ids, or mode='eval'"
            )
        key = secrets.token_urlsafe(32)
        urls = f"{self.base_url}/v1", f"{self.base_url}/s/{key}/v1"
        history = History(dropped_reasoning)
        session = Session(key, rollout_id, mode, sampling, *urls, max_calls, max_path_tokens, history=history)
        self._sessions[key] = session
        return session

    def close(self, session: Session) -> Recording:
        """End a session and return what it recorded.

        Its key is refused from now on (401). Calls in flight are cancelled, not recorded, and answered with
        401. Raises ProxyStateError when it was closed before.
        """
        if self._sessions.pop(session.key, None) is None:
            raise ProxyStateError(f"the session of rollout {session.rollout_id} was closed before")
        session.close()
        return session.recording()

    def pause(self) -> None:
        """Answer new calls with 429 and Retry-After until resume(). Calls in flight go on."""
        self._gate.paused = True

    def resume(self) -> None:
        """Take calls again."""
        self._gate.paused = False

    async def drain(self) -> None:
        """Wait until no call is in flight. Pause first, or new ones keep coming."""
        await self._gate.drain()


def _recorder(engine: Engine, rendering: Rendering | None, retry_after_s: float) -> Recorder:
    if isinstance(engine, HostedEngine):
        return TextRecorder(engine, retry_after_s)
    if rendering is None:
        raise RenderingError("this engine takes token ids: pass Rendering.load(model_dir) to Proxy")
    return Recorder(engine, rendering, retry_after_s)
