"""The embedded engine: a thread that decodes, and the asyncio interface to it.

`generate` hands a request to the thread and awaits its future; the thread admits waiting requests, advances
all running ones by a token, and hands finished ones back. Weights are swapped and pauses begin between two
steps. The thread owns the batch: nothing else touches it. When it dies, everyone who waits is told why.

For small Qwen3 models on a CPU or one GPU, in float32. Anything larger is vLLM's work: see ../remote.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from palestra.harness_proxy.engines.base import (
    Capability,
    EngineError,
    EngineUnavailableError,
    Generation,
    InvalidRequestError,
    PromptTooLongError,
)
from palestra.harness_proxy.engines.embedded.admission import next_wave
from palestra.harness_proxy.engines.embedded.batch import DecodeBatch, Outcome, Request
from palestra.harness_proxy.engines.embedded.loading import load_config, load_weights
from palestra.harness_proxy.engines.embedded.qwen3 import Qwen3, Qwen3Config
from palestra.trajectories.model import Sampling

_MIB = 2**20


class TorchEngine:
    """Continuous batching over one Qwen3 model. Implements `Engine`."""

    def __init__(
        self,
        config: Qwen3Config,
        weights: Mapping[str, Tensor],
        *,
        version: int = 0,
        model_name: str = "embedded",
        max_batch: int = 64,
        context_tokens: int | None = None,
        device: str = "cpu",
        threads: int = 1,
        deterministic: bool = False,
        prefix_cache_mib: int = 512,
    ) -> None:
        """Copies `weights` (Hugging Face names) and starts the thread.

        context_tokens: longest prompt and reply together, by default what the model was made for.
        threads: CPU threads of one torch operation. prefix_cache_mib: memory for prefixes, 0 for no reuse.
        deterministic: one sequence at a time, no reuse and fixed shapes, so that a reply's bits depend on
        weights, prompt and sampling alone. Raises ValueError for weights that do not fit the config.
        """
        self.model_name, self.config = model_name, config
        self.context_tokens = min(
            context_tokens or config.max_position_embeddings, config.max_position_embeddings
        )
        self._device, self._threads = device, threads
        self._batch = DecodeBatch(
            Qwen3(config, weights, device),
            version,
            max_rows=1 if deterministic else max_batch,
            context_tokens=self.context_tokens,
            prefix_cache_bytes=0 if deterministic else prefix_cache_mib * _MIB,
            fixed_capacity=deterministic,
        )
        self._wake = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._orders: deque[tuple[Callable[[], object], asyncio.Future[None] | None]] = deque()
        self._inflight: set[asyncio.Future[Generation]] = set()
        self._paused = self._closed = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="palestra-torch-engine", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        *,
        version: int = 0,
        max_batch: int = 64,
        context_tokens: int | None = None,
        device: str = "cpu",
        threads: int = 1,
        deterministic: bool = False,
        prefix_cache_mib: int = 512,
    ) -> TorchEngine:
        """From a local Hugging Face directory. Raises FileNotFoundError and UnsupportedModelError."""
        path = Path(model_dir)
        return cls(
            load_config(path),
            load_weights(path),
            version=version,
            model_name=path.resolve().name,
            max_batch=max_batch,
            context_tokens=context_tokens,
            device=device,
            threads=threads,
            deterministic=deterministic,
            prefix_cache_mib=prefix_cache_mib,
        )

    @property
    def policy_version(self) -> int:
        """The version of the weights that the next token is sampled with."""
        return self._batch.version

    async def probe(self) -> Capability:
        """Sample two tokens, and report what came back."""
        reply = await self.generate([0], Sampling(max_tokens=2, seed=0))
        if not len(reply.token_ids) == len(reply.logprobs) == 2:
            raise EngineError(f"the probe asked for 2 tokens and got {reply!r}")
        return Capability(self.model_name, "tokens", "processed", self.context_tokens)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str = ""
    ) -> Generation:
        """Sample a reply; when cancelled, its place in the batch is free from the next step on.

        `session` finds the keys and values of the same rollout's previous turn. Raises PromptTooLongError,
        EngineUnavailableError, and InvalidRequestError (a ValueError) for what could never be sampled.
        """
        request = self._request(prompt_ids, sampling, session)
        self._order(lambda: self._waiting.append(request))
        self._inflight.add(request.future)
        try:
            return await request.future
        except asyncio.CancelledError:
            self._forget(request)
            raise
        finally:
            self._inflight.discard(request.future)

    async def update_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Sample with a copy of `weights` from the next token on; returns once that is so.

        Requests in flight go on, with a new span in `Generation.versions`. Raises ValueError, and changes
        nothing, when names or shapes are not the model's.
        """
        model = await asyncio.to_thread(Qwen3, self.config, weights, self._device)
        await self._done(lambda: self._batch.swap(model, version))

    async def pause(self) -> None:
        """Stop between two steps; requests wait. Returns once nothing is computed any more."""
        await self._done(lambda: setattr(self, "_paused", True))

    async def resume(self) -> None:
        """Go on after `pause`."""
        await self._done(lambda: setattr(self, "_paused", False))

    async def drain(self) -> None:
        """Wait until every request made so far has ended. Raises EngineError when paused: none would."""
        if self._inflight and self._paused:
            raise EngineError(
                f"{len(self._inflight)} requests cannot finish while paused: call resume() first"
            )
        if self._inflight:
            await asyncio.wait(self._inflight)

    async def aclose(self) -> None:
        """Stop the thread; requests in flight end with EngineUnavailableError."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join)

    def _request(self, prompt_ids: Sequence[int], sampling: Sampling, session: str) -> Request:
        prompt = np.asarray(prompt_ids, np.int64)
        if not len(prompt) or prompt.min() < 0 or prompt.max() >= self.config.vocab_size:
            allowed = f"token ids from 0 to {self.config.vocab_size - 1}, at least one"
            raise InvalidRequestError(f"a prompt is {allowed}; got {_brief(prompt)}")
        room = self.context_tokens - len(prompt)
        if room < 1:
            raise PromptTooLongError(len(prompt), self.context_tokens)
        _check_sampling(sampling)
        future = asyncio.get_running_loop().create_future()
        return Request(prompt.astype(np.int32), sampling, session, min(sampling.max_tokens, room), future)

    def _order(self, action: Callable[[], object], done: asyncio.Future[None] | None = None) -> None:
        """Have the thread run `action` between two steps."""
        with self._wake:
            if self._failure is not None or self._closed:
                raise self._unavailable()
            self._orders.append((action, done))
            self._wake.notify()

    async def _done(self, action: Callable[[], object]) -> None:
        done = asyncio.get_running_loop().create_future()
        self._order(action, done)
        await done

    def _forget(self, request: Request) -> None:
        """Tell the thread that nobody waits for this request; a thread that ended has forgotten it."""

        def forget() -> None:
            if request in self._waiting:
                self._waiting.remove(request)
            self._batch.remove(request)

        with contextlib.suppress(EngineUnavailableError):
            self._order(forget)

    def _unavailable(self) -> EngineUnavailableError:
        if self._failure is None:
            return EngineUnavailableError("the engine was closed")
        error = EngineUnavailableError(f"the engine's thread died: {self._failure!r}. Start a new engine.")
        error.__cause__ = self._failure
        return error

    # Everything below runs in the engine's own thread.

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while self._follow_orders():
                    self._advance()
        except Exception as error:  # the thread's outermost frame: whoever waits must hear of any error
            self._failure = error
        finally:
            self._abandon()

    def _follow_orders(self) -> bool:
        """Wait until there is something to do, and run the orders; False when it is time to end."""
        with self._wake:
            self._wake.wait_for(lambda: self._orders or self._closed or self._has_work())
            orders = list(self._orders)
            self._orders.clear()
        for action, done in orders:
            action()
            if done is not None:
                _settle([(done, None)])
        return not self._closed

    def _has_work(self) -> bool:
        return not self._paused and bool(self._waiting or self._batch.requests)

    def _advance(self) -> None:
        """Let waiting requests join, and sample one token for everyone."""
        if self._paused:
            return
        outcomes: list[Outcome] = []
        while self._waiting and self._batch.free_rows:
            outcomes += self._batch.join(next_wave(self._waiting, self._batch.store, self._batch.free_rows))
        if self._batch.requests:
            outcomes += self._batch.step()
        if outcomes:
            _settle([(request.future, outcome) for request, outcome in outcomes])

    def _abandon(self) -> None:
        with self._wake:
            self._closed = True
            orders = list(self._orders)
            self._orders.clear()
        for action, _ in orders:
            action()
        lost = [request.future for request in (*self._waiting, *self._batch.requests)]
        _settle([(future, self._unavailable()) for future in lost + [done for _, done in orders if done]])


def _settle(results: Iterable[tuple[asyncio.Future[Any], object]]) -> None:
    """Give futures their results, or exceptions, with one wake-up of each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], object]]] = {}
    for future, result in results:
        by_loop.setdefault(future.get_loop(), []).append((future, result))
    for loop, part in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_set_results, part)


def _set_results(results: list[tuple[asyncio.Future[Any], object]]) -> None:
    for future, result in results:
        if future.done():
            continue
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


def _check_sampling(sampling: Sampling) -> None:
    for name, value, allowed, fits in (
        ("temperature", sampling.temperature, "0 or more", 0 <= sampling.temperature < math.inf),
        ("top_p", sampling.top_p, "above 0 and at most 1", 0 < sampling.top_p <= 1),
        ("top_k", sampling.top_k, "0 (no limit) or more", sampling.top_k >= 0),
        ("max_tokens", sampling.max_tokens, "1 or more", sampling.max_tokens >= 1),
    ):
        if not fits:
            raise InvalidRequestError(f"{name} must be {allowed}, got {value!r}")


def _brief(prompt: npt.NDArray[np.int64]) -> str:
    return f"{len(prompt)} ids from {prompt.min()} to {prompt.max()}" if len(prompt) else "none"
