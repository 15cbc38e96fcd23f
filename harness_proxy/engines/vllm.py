"""vLLM as an engine: token ids in and out, the weights of every token named, new weights while it serves.

    engine = VllmEngine("http://127.0.0.1:8000/v1", "policy")
    await engine.update_weights(policy.weights(), version=3)

The server must run with `--logprobs-mode processed_logprobs`, and for `update_weights` with
VLLM_SERVER_DEV_MODE=1; `vllm_server.py` starts one so. Replies come from /inference/v1/generate where that says which
weights sampled which token (vLLM 0.32 with `--enable-scale-out`: entrypoints/scale_out/token_in_token_out/protocol.py,
entrypoints/rl/online/api_router.py), else from /v1/completions (vLLM 0.26).

New weights travel as `publishing.py` has it. Prefixes are
cached by the server: requests of one rollout should meet the same server (`EngineGroup` sees to that).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from palestra.harness_proxy.engines.admission import Admission, kv_usage
from palestra.harness_proxy.engines.base import Capability, EngineError, EngineUnavailableError
from palestra.harness_proxy.engines.publishing import LOAD_ADAPTER, FileWeights, Publisher, Request
from palestra.harness_proxy.engines.remote import CompletionsEngine, read_answer, sampling_fields
from palestra.harness_proxy.engines.vllm_server import VllmServer
from palestra.trajectories.model import Sampling

if TYPE_CHECKING:
    from torch import Tensor

InFlight = Literal["wait", "keep", "abort"]
"""What happens to replies in progress when weights change: they end first, they go on with the new weights (their
tokens then carry two versions), or they are given up and asked for again."""


class VllmEngine(CompletionsEngine):
    """Samples with a vLLM server, and can change its weights. Implements `Engine`."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        in_flight: InFlight = "wait",
        version: int = 0,
        publisher: Publisher | None = None,
        server: VllmServer | None = None,
        max_kv_usage: float = 1.0,
    ) -> None:
        """base_url: ending in /v1. version: of the weights that the server has now.

        publisher: how new weights get there, by default through a file.

        server: one to look after: it is started again when it has died, with the weights it had, and closed with
        this engine.

        max_kv_usage: share of the KV cache from which on new requests wait; 1 leaves that to the server.
        """
        super().__init__(base_url, model, api_key=api_key, timeout_s=timeout_s)
        self.policy_version = version
        self._in_flight: InFlight = in_flight
        self._names: dict[str, int] = {}
        self._publisher = publisher or FileWeights()
        self._server = server
        self._root = self._base_url.removesuffix("/v1")
        self._token_api = False
        self._admission = Admission(self._kv_usage, max_kv_usage)
        self._asleep = self._bare = self._published = False
        """bare: the server was started again, and lacks what was published."""
        self._mending = asyncio.Lock()

    async def probe(self) -> Capability:
        """As CompletionsEngine's; also finds out whether the weights of each token can be known.

        Raises EngineError where they cannot and `in_flight` is "keep".
        """
        await self._revive()
        self._token_api = await self._names_weights()
        if self._in_flight == "keep" and not self._token_api:
            raise EngineError(
                "this vLLM does not say which weights sampled which token, so replies must not outlive an update: use "
                'in_flight="wait" or "abort", or vLLM 0.32 with --enable-scale-out'
            )
        return await super().probe()

    async def _names_weights(self) -> bool:
        probe = {"token_ids": [1], "sampling_params": {"max_tokens": 1}}
        try:
            reply = await self._request("POST", "/inference/v1/generate", probe)
        except EngineUnavailableError:
            raise
        except EngineError:
            return False
        spans = reply["choices"][0].get("weight_versions") or []
        self._names |= {span["version"]: self.policy_version for span in spans}
        return bool(spans)

    async def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Serve `weights`, as the publisher takes them, from now on as policy version `version`.

        Replies in progress are treated as `in_flight` says. Raises EngineError when the server does not take them; it
        then does not answer until it has them or was started again.
        """
        async with self._mending:
            await self._restarted()
            await asyncio.to_thread(self._publisher.prepare, weights)
            await self._wake()
            await self._publish(version, self._publisher.send)
            self._bare, self._published = False, True

    @property
    def _asked(self) -> str:
        return self._publisher.serves or self.model

    async def sleep(self) -> None:
        """Give the accelerator's memory back until the next `update_weights`; nothing can be sampled meanwhile.

        For a trainer on the same accelerator. The server needs `--enable-sleep-mode`. Raises EngineError.
        """
        await self._request("POST", "/sleep?level=1")
        self._asleep = True

    async def _wake(self) -> None:
        if self._asleep:
            await self._request("POST", "/wake_up")
            self._asleep = False

    async def _kv_usage(self) -> float:
        status, content = await self._exchange(self._root, "GET", "/metrics")
        if status != 200:
            raise EngineUnavailableError(f"GET {self._root}/metrics answered {status}")
        return kv_usage(content.decode("utf-8", "replace"))

    async def aclose(self) -> None:
        """Close the connections, and the server where it is this engine's."""
        await super().aclose()
        if self._server is not None:
            await self._server.aclose()
        self._publisher.close()

    async def _publish(self, version: int, send: Callable[[Request], Awaitable[None]]) -> None:
        self._names[str(version)] = version
        async with self._paused():
            await send(self._request)
            if self._token_api:
                await self._request("POST", "/update_weight_version", {"new_version": str(version)})
            await self._request("POST", "/reset_prefix_cache")
        self.policy_version = version

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """vLLM samples nothing inside; after an error it stays paused, since nobody knows its weights."""
        await self._request("POST", f"/pause?mode={self._in_flight}")
        yield
        await self._request("POST", "/resume")

    async def _revive(self) -> None:
        """Start the server again if it has died, and give it the weights it had."""
        if self._bare or (self._server is not None and not self._server.running):
            async with self._mending:
                await self._restarted()
                if self._bare and self._published:
                    await self._publish(self.policy_version, self._publisher.send_again)
                self._bare = False

    async def _restarted(self) -> None:
        """Start the server again if it has died, with the weights of the model."""
        if self._server is not None and not self._server.running:
            await self._server.restart()
            self._asleep, self._bare = False, True

    async def _request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        base = self._base_url if path in ("/models", "/completions") else self._root
        if path != LOAD_ADAPTER:
            return await self._fetch(base, method, path, body, headers)
        status, said = await self._exchange(base, method, path, body, headers)
        return read_answer(status, b"" if status == 200 else said, f"{method} {base}{path}")

    async def _complete(self, prompt: list[int], sampling: Sampling, session: str) -> dict[str, Any]:
        await self._revive()
        async with self._admission.admitted():
            if not self._token_api:
                return await super()._complete(prompt, sampling, session)
            reply = await self._request("POST", "/inference/v1/generate", self._tokens_in(prompt, sampling))
        return self._tokens_out(reply)

    def _tokens_in(self, prompt: list[int], sampling: Sampling) -> dict[str, Any]:
        return {
            "model": self._asked,
            "token_ids": prompt,
            "sampling_params": sampling_fields(sampling),
            "return_token_ids": True,
        }

    def _tokens_out(self, body: dict[str, Any]) -> dict[str, Any]:
        """The reply in the form of /v1/completions, checked that its log-probabilities are of its tokens."""
        choices = body.get("choices") or []
        for choice in choices:
            entries = (choice.get("logprobs") or {}).get("content") or []
            if [e.get("token_id") for e in entries] != choice.get("token_ids"):
                raise EngineError(
                    f"the log-probabilities are of other tokens than the reply: {choice!r:.500}"
                )
            choice["logprobs"] = {"token_logprobs": [e["logprob"] for e in entries]}
            choice["prompt_token_ids"] = body.get("prompt_token_ids")
            body["versions"] = self._versions(choice.get("weight_versions") or [])
        return body

    def _versions(self, spans: list[dict[str, Any]]) -> list[tuple[int, int]]:
        """(first token, policy version) per span. Raises EngineError for weights that are not ours."""
        foreign = {s["version"] for s in spans} - set(self._names)
        if foreign:
            raise EngineError(
                f"the server sampled with weights {sorted(foreign)}, published were {sorted(self._names)}: does "
                "another run use it?"
            )
        return [(s["start"], self._names[s["version"]]) for s in spans] or [(0, self.policy_version)]
