"""The servers of benchmarks/proxy.py, one process each; each prints its port when it listens.

    proxy_servers.py upstream MODEL          a model server that answers at once: /v1/chat/completions, whole and
                                             streamed, and /v1/completions with token ids, as vLLM writes them
    proxy_servers.py bare URL                passes bodies on: ASGI, aiohttp, uvicorn
    proxy_servers.py lean URL                the same through the proxy's own listener and HTTP client
    proxy_servers.py palestra URL MODEL DIR  the recording proxy, committing to a store in DIR

The last one reads lines "open N" and answers with N keys; a session is closed and committed after its fourth
call.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import httptools
import orjson
import uvicorn

from palestra.harness_proxy.asgi import Receive, Scope, Send, read_body, respond
from palestra.harness_proxy.engines.http import HttpClient
from palestra.harness_proxy.engines.remote import CompletionsEngine
from palestra.harness_proxy.listener import Listener
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.server import Proxy
from palestra.harness_proxy.sessions import Session
from palestra.rollouts import loop
from palestra.trajectories.model import Failure, Rollout, Sampling, Trajectory
from palestra.trajectories.store import Store

MODEL_NAME = "bench"
TURNS = 4
REPLY_TOKENS = 64
EVENTS = 18
"""Of a streamed reply, [DONE] not counted."""
REPLY = (
    "I looked at the tables and counted the rows. The query gave one number, and the check with another query "
    "agrees. Shall I write it down as the final answer, or look at the dates first?"
)


async def _stay(port: int | str) -> None:
    print(port, flush=True)
    await asyncio.Event().wait()


def reply_ids(rendering: Rendering) -> list[int]:
    """`REPLY_TOKENS` ids that end as a reply does."""
    ids = rendering.encode(REPLY * 2)[: REPLY_TOKENS - 1]
    return [*ids, rendering.stop_token_ids[0]]


class Canned:
    """The replies of the upstream, made once."""

    def __init__(self, rendering: Rendering) -> None:
        self.ids = reply_ids(rendering)
        self.text = rendering.decode(self.ids[:-1])
        self.logprobs = [-0.03125 * (i % 29 + 1) for i in range(len(self.ids))]
        self.chat = self._head(
            orjson.dumps(self._envelope("chat.completion") | {"choices": [self._choice()]})
        )
        self.stream = self._head(self._events(), b"text/event-stream")
        self.models = self._head(orjson.dumps({"data": [{"id": MODEL_NAME, "max_model_len": 32768}]}))

    def completion(self, body: bytes) -> bytes:
        """Token ids, log-probabilities and, as vLLM does, the prompt's ids once more."""
        asked = orjson.loads(body)
        count = min(asked["max_tokens"], len(self.ids))
        choice: dict[str, Any] = {
            "index": 0,
            "text": "",
            "finish_reason": "stop" if count == len(self.ids) else "length",
        }
        forced = asked["top_k"] == 1  # the probe: one token left to sample has 0 nats
        choice |= {"logprobs": {"token_logprobs": [0.0] if forced else self.logprobs[:count]}}
        choice |= {"token_ids": self.ids[:count], "prompt_token_ids": asked["prompt"]}
        return self._head(orjson.dumps(self._envelope("text_completion") | {"choices": [choice]}))

    def _envelope(self, kind: str) -> dict[str, Any]:
        usage: Any = {
            "prompt_tokens": 300,
            "completion_tokens": REPLY_TOKENS,
            "total_tokens": 300 + REPLY_TOKENS,
        }
        return {"id": "x-1", "object": kind, "created": 1_700_000_000, "model": MODEL_NAME, "usage": usage}

    def _choice(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.text}
        return {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}

    def _events(self) -> bytes:
        size = -(-len(self.text) // (EVENTS - 2))
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": self.text[i : i + size]} for i in range(0, len(self.text), size)]
        envelope: dict[str, Any] = self._envelope("chat.completion.chunk")
        usage = {"usage": envelope.pop("usage")}
        choices: list[Any] = [{"index": 0, "delta": d, "finish_reason": None} for d in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
        events = [envelope | {"choices": [c]} for c in choices] + [envelope | usage | {"choices": []}]
        return b"".join(b"data: %b\n\n" % orjson.dumps(e) for e in events) + b"data: [DONE]\n\n"

    @staticmethod
    def _head(body: bytes, kind: bytes = b"application/json") -> bytes:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
        return head + body


class Upstream(asyncio.Protocol):
    """HTTP without a framework, so that what is measured is not this."""

    def __init__(self, canned: Canned) -> None:
        self._canned = canned
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._body = b"", bytearray()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._transport.write(self._answer(bytes(self._body)))
        self._body.clear()

    def _answer(self, body: bytes) -> bytes:
        if self._url.endswith(b"/chat/completions"):
            return self._canned.stream if b'"stream":true' in body.replace(b" ", b"") else self._canned.chat
        return self._canned.completion(body) if self._url.endswith(b"/completions") else self._canned.models


async def upstream(model_dir: str) -> None:
    """Serve canned replies."""
    canned = Canned(Rendering.load(model_dir))
    server = await asyncio.get_running_loop().create_server(lambda: Upstream(canned), "127.0.0.1", 0)
    await _stay(server.sockets[0].getsockname()[1])


async def bare(url: str) -> None:
    """Pass bodies on, as a proxy in Python usually does."""
    http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive, {}, 1 << 20, None)
        headers = {"content-type": "application/json"}
        async with http.post(url + scope["path"], data=body, headers=headers) as response:
            kind = {b"content-type": response.headers["content-type"].encode()}
            await respond(send, response.status, await response.read(), kind)

    sock = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(app, lifespan="off", ws="none", access_log=False, log_config=None)
    serving = asyncio.create_task(uvicorn.Server(config).serve(sockets=[sock]))
    print(sock.getsockname()[1], flush=True)
    await serving


async def lean(url: str) -> None:
    """Pass bodies on, with no more than the recording proxy uses for it."""
    http = HttpClient(url, {"content-type": "application/json"}, timeout_s=60)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive, {}, 1 << 20, None)
        status, answer = await http.request("POST", scope["path"], body)
        kind = b"text/event-stream" if answer.startswith(b"data: ") else b"application/json"
        await respond(send, status, answer, {b"content-type": kind})

    await _stay((await Listener.open(app, "127.0.0.1", 0)).url.rsplit(":", 1)[1])


class Committing:
    """The proxy, whose sessions are committed when they have played their calls."""

    def __init__(self, proxy: Proxy, store: Store) -> None:
        self._proxy, self._store = proxy, store
        self._sessions: dict[str, Session] = {}

    def open(self, count: int) -> list[str]:
        """Keys of `count` fresh sessions, each with a journal."""
        return [self._open(f"bench/{len(self._store)}/{len(self._sessions)}") for _ in range(count)]

    def _open(self, name: str) -> str:
        journal = self._store.journal(_rollout(name))
        sampling = Sampling(max_tokens=256, seed=1)
        session = self._proxy.open(name, mode="train", sampling=sampling, journal=journal)
        self._sessions[session.key] = session
        return session.key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._proxy.app(scope, receive, send)
        key = scope["path"].split("/", 3)[2]
        session = self._sessions.get(key)
        if session is not None and len(session.calls) == TURNS:
            self._commit(self._sessions.pop(key))

    def _commit(self, session: Session) -> None:
        made = self._proxy.close(session)
        if made.failure is not None or [c.prompt_mode for c in made.calls] != ["render", *["bridge"] * 3]:
            raise RuntimeError(f"this conversation must be one branch, got {made.calls} {made.failure}")
        self._store.append(Trajectory(_rollout(session.rollout_id), made.nodes, made.calls, (), made.tools))
        if session.journal is not None:
            session.journal.discard()


def _rollout(name: str) -> Rollout:
    ended = Failure("cancelled", "bench", "a benchmark has no score")
    return Rollout(name, "bench", name, "none", 0, 1, "train", "load", "", "tokens", 0, failure=ended)


async def palestra(url: str, model_dir: str, directory: str) -> None:
    """Record."""
    with Store.open(Path(directory) / "store", write=True) as store:
        proxy = Proxy(CompletionsEngine(url + "/v1", MODEL_NAME), Rendering.load(model_dir))
        await proxy.probe()
        app = Committing(proxy, store)
        listener = await Listener.open(app, "127.0.0.1", 0)
        print(listener.url.rsplit(":", 1)[1], flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(*app.open(int(line.split()[1])), flush=True)


if __name__ == "__main__":
    roles: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "upstream": upstream,
        "bare": bare,
        "lean": lean,
        "palestra": palestra,
    }
    loop.run(roles[sys.argv[1]](*sys.argv[2:]))
