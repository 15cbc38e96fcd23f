"""The sequences being decoded: joining, one token for all of them, leaving. Synchronous, for one thread.

The request in row r of the key-value cache is `requests[r]`; when one leaves, the last row takes its place.
Nothing is done per sequence and token in Python: a step is one forward pass, one draw and a few numpy
operations over all rows. It does not decide who joins together: admission.py does.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from palestra.harness_proxy.engines.base import EngineError, Generation
from palestra.harness_proxy.engines.embedded.cache import KeyValueCache, Prefix, PrefixStore
from palestra.harness_proxy.engines.embedded.qwen3 import Qwen3, rotary_table
from palestra.harness_proxy.engines.embedded.rows import Int64Array, Rows
from palestra.harness_proxy.engines.embedded.sampler import greedy, sample, truncate
from palestra.trajectories.model import FinishReason, FloatArray, IntArray, Sampling

_FIRST_CAPACITY = 512


class NonFiniteLogitsError(EngineError):
    """Raised when the weights give logits that are nan or infinite."""


@dataclass(slots=True, eq=False)
class Request:
    """One reply to be sampled; `max_tokens` is already cut to what fits the context window."""

    prompt: IntArray
    sampling: Sampling
    session: str
    max_tokens: int
    future: asyncio.Future[Generation]
    versions: list[tuple[int, int]] = field(default_factory=list)
    model: Qwen3 | None = None
    """The weights that computed its keys and values, while they are all of one version."""


@dataclass(frozen=True, slots=True)
class Joining:
    """A request about to join, and the stored prefix that gives its first `reused` positions."""

    request: Request
    prefix: Prefix | None
    reused: int
    keep_prompt: bool
    """Store the prompt's keys and values at once, for others that start as it does."""

    @property
    def tail_tokens(self) -> int:
        """Prompt tokens still to be computed."""
        return len(self.request.prompt) - self.reused


Outcome = tuple[Request, Generation | EngineError]


class DecodeBatch:
    """Up to `max_rows` sequences that advance one token at a time."""

    def __init__(
        self,
        model: Qwen3,
        version: int,
        *,
        max_rows: int,
        context_tokens: int,
        prefix_cache_bytes: int,
        fixed_capacity: bool,
    ) -> None:
        self.model, self.version = model, version
        self.requests: list[Request] = []
        self.store = PrefixStore(prefix_cache_bytes)
        self._rows = Rows(max_rows, context_tokens)
        capacity = context_tokens if fixed_capacity else min(context_tokens, _FIRST_CAPACITY)
        config = model.config
        self._cache = KeyValueCache(
            config.num_hidden_layers,
            max_rows,
            config.num_key_value_heads,
            config.head_dim,
            capacity,
            model.device,
        )
        self._rotary = rotary_table(config, capacity, model.device)

    @property
    def free_rows(self) -> int:
        """How many more sequences may join."""
        return self._rows.max_rows - len(self.requests)

    def swap(self, model: Qwen3, version: int) -> None:
        """Sample with other weights from the next token on. Running sequences keep their keys and values."""
        self.model, self.version = model, version
        self.store.clear()
        for row, request in enumerate(self.requests):
            request.versions.append((int(self._rows.sampled[row]), version))
            request.model = None

    def join(self, joining: Sequence[Joining]) -> list[Outcome]:
        """Compute the prompts of new sequences and draw their first tokens; returns those that end."""
        first, stop = len(self.requests), len(self.requests) + len(joining)
        for row, new in enumerate(joining, first):
            self._seat(row, new)
        ids, logprobs = self._draw(self._prefill(first, joining), first, stop)
        for row, new in enumerate(joining, first):
            if new.keep_prompt and np.isfinite(logprobs[row - first]):
                prompt = new.request.prompt
                self.store.put(prompt, self._cache.save(row, len(prompt)), session="")
        return self._finish(self._rows.append(first, stop, ids, logprobs))

    def step(self) -> list[Outcome]:
        """One more token for every sequence; returns those that end with it."""
        n = len(self.requests)
        positions = self._rows.length[:n] - 1
        self._reserve(length := int(positions.max()) + 1)
        logits = self.model.forward(
            self._tensor(self._rows.last[:n]).unsqueeze(1),
            self._tensor(positions).unsqueeze(1),
            None,
            self._cache.rows(0, n, length),
            self._rotary,
        )
        ids, logprobs = self._draw(logits, 0, n)
        return self._finish(self._rows.append(0, n, ids, logprobs))

    def remove(self, request: Request) -> None:
        """Drop a sequence that nobody waits for; nothing happens when it is not running."""
        if request in self.requests:
            self._vacate(self.requests.index(request))

    def _seat(self, row: int, new: Joining) -> None:
        request = new.request
        request.versions, request.model = [(0, self.version)], self.model
        self.requests.append(request)
        self._rows.seat(row, request.prompt, request.sampling, request.max_tokens)
        self._reserve(len(request.prompt))
        if new.prefix is not None:
            self._cache.load(row, new.prefix.saved, new.reused)

    def _prefill(self, first: int, joining: Sequence[Joining]) -> Tensor:
        tails = np.array([new.tail_tokens for new in joining])
        starts = np.array([new.reused for new in joining])
        columns = int(tails.max())
        tokens = np.zeros((len(joining), columns), np.int64)
        for row, new in enumerate(joining):
            tokens[row, : new.tail_tokens] = new.request.prompt[new.reused :]
        positions = starts[:, None] + np.arange(columns)
        self._reserve(int(positions.max()) + 1)
        rows = self._cache.rows(first, first + len(joining), int((starts + tails).max()))
        last = self._tensor(tails - 1) if columns > 1 else None
        return self.model.forward(self._tensor(tokens), self._tensor(positions), last, rows, self._rotary)

    def _draw(self, logits: Tensor, first: int, stop: int) -> tuple[Int64Array, FloatArray]:
        """Each row's next token and its log-probability."""
        rows, part = self._rows, slice(first, stop)
        if rows.greedy[part].all():
            ids, logprobs = greedy(logits)
        else:
            ids, logprobs = sample(self._scaled(logits, part), self._tensor(rows.uniforms(first, stop)))
        if rows.greedy[part].any():
            is_greedy = self._tensor(rows.greedy[part])
            best, best_logprobs = greedy(logits)
            ids, logprobs = torch.where(is_greedy, best, ids), torch.where(is_greedy, best_logprobs, logprobs)
        return ids.cpu().numpy(), logprobs.cpu().numpy()

    def _scaled(self, logits: Tensor, part: slice) -> Tensor:
        """Logits after temperature and truncation, each skipped where no row asks for it."""
        temperature, top_p, top_k = (values[part] for values in self._rows.shaping)
        if (temperature != 1.0).any():
            logits = logits / self._tensor(temperature).unsqueeze(-1)
        if (top_p < 1.0).any() or (top_k > 0).any():
            logits = truncate(logits, self._tensor(top_p), self._tensor(top_k))
        return logits

    def _finish(self, ended: Int64Array) -> list[Outcome]:
        """Take the rows that ended out of the batch, highest first, and keep their keys and values."""
        outcomes: list[Outcome] = []
        for row in ended.tolist():
            request = self.requests[row]
            outcome = self._outcome(row, request)
            if isinstance(outcome, EngineError):
                self._cache.wipe(row)
            elif self.store.enabled and request.model is self.model:
                self._keep(row, request.session)
            self._vacate(row)
            outcomes.append((request, outcome))
        return outcomes

    def _outcome(self, row: int, request: Request) -> Generation | EngineError:
        ids, logprobs = self._rows.reply(row)
        if not math.isfinite(logprobs[-1]):
            return NonFiniteLogitsError(
                f"policy version {request.versions[-1][1]} gave log-probabilities that are not finite: "
                "publish the weights of an earlier version, and look at the update that made these"
            )
        reason: FinishReason = "stop" if self._rows.stopped(row) else "length"
        return Generation(ids, logprobs, reason, tuple(request.versions))

    def _keep(self, row: int, session: str) -> None:
        """Store a finished sequence; its last token was never fed, so it has no keys and values."""
        n = int(self._rows.length[row]) - 1
        self.store.put(self._rows.ids[row, :n].copy(), self._cache.save(row, n), session)

    def _vacate(self, row: int) -> None:
        last = len(self.requests) - 1
        if row != last:
            self._rows.move(last, row)
            self._cache.move(last, row, int(self._rows.length[last]) - 1)
            self.requests[row] = self.requests[last]
        self.requests.pop()

    def _reserve(self, positions: int) -> None:
        if self._cache.reserve(positions):
            self._rotary = rotary_table(self.model.config, self._cache.capacity, self.model.device)

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.model.device)
