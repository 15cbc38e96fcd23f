"""What the decode batch knows about each running sequence, as numpy arrays with one row per sequence.

Arrays over rows let a step of the whole batch be a few vector operations. Rows are moved, never rewritten in
place by anybody else. It holds no keys and values: cache.py does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from palestra.harness_proxy.engines.embedded.sampler import uniforms
from palestra.trajectories.model import FloatArray, IntArray, Sampling

Int64Array = npt.NDArray[np.int64]


class Rows:
    """Tokens, sampling parameters and random numbers of up to `max_rows` sequences."""

    def __init__(self, max_rows: int, context_tokens: int) -> None:
        self.max_rows = max_rows
        self.ids = np.empty((max_rows, context_tokens), np.int32)  # prompt and reply
        self.logprobs = np.empty((max_rows, context_tokens), np.float32)  # of the reply
        self._u = np.empty((max_rows, context_tokens), np.float64)  # one per token of the reply
        self.last = np.zeros(max_rows, np.int64)  # the latest token
        self.length = np.zeros(max_rows, np.int64)  # prompt and reply
        self.sampled = np.zeros(max_rows, np.int64)  # reply
        self._limit = np.zeros(max_rows, np.int64)
        self._stops = np.full((max_rows, 1), -1, np.int64)
        self._temperature = np.ones(max_rows, np.float32)  # 1 for greedy rows
        self.greedy = np.zeros(max_rows, np.bool_)
        self._top_p = np.ones(max_rows, np.float32)
        self._top_k = np.zeros(max_rows, np.int64)

    def seat(self, row: int, prompt: IntArray, sampling: Sampling, max_tokens: int) -> None:
        """Put a new sequence into a row."""
        self.ids[row, : len(prompt)] = prompt
        self.length[row], self.sampled[row], self._limit[row] = len(prompt), 0, max_tokens
        self._u[row, :max_tokens] = uniforms(sampling.seed, max_tokens)
        is_greedy = sampling.temperature == 0
        self.greedy[row] = is_greedy
        self._temperature[row] = 1.0 if is_greedy else sampling.temperature
        self._top_p[row] = 1.0 if is_greedy else sampling.top_p
        self._top_k[row] = 0 if is_greedy else sampling.top_k
        self._set_stops(row, sampling.stop_token_ids)

    @property
    def shaping(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], Int64Array]:
        """Temperature, top-p and top-k of each row; neutral values for greedy rows."""
        return self._temperature, self._top_p, self._top_k

    def uniforms(self, first: int, stop: int) -> npt.NDArray[np.float64]:
        """The random number of each row's next token."""
        rows = np.arange(first, stop)
        return self._u[rows, self.sampled[first:stop]]

    def append(self, first: int, stop: int, ids: Int64Array, logprobs: FloatArray) -> Int64Array:
        """Add one token to each of these rows; returns the rows that end with it, highest first."""
        rows, part = np.arange(first, stop), slice(first, stop)
        self.ids[rows, self.length[part]] = ids
        self.logprobs[rows, self.sampled[part]] = logprobs
        self.last[part] = ids
        self.length[part] += 1
        self.sampled[part] += 1
        ended = self.stopped(part) | (self.sampled[part] >= self._limit[part]) | ~np.isfinite(logprobs)
        return rows[ended][::-1]

    def stopped(self, part: slice | int) -> npt.NDArray[np.bool_]:
        """Whether the latest token is one that ends the reply."""
        stopped: npt.NDArray[np.bool_] = (self._stops[part] == self.last[part, None]).any(-1)
        return stopped

    def reply(self, row: int) -> tuple[list[int], list[float]]:
        """The sampled ids and their log-probabilities."""
        n, length = self.sampled[row], self.length[row]
        return self.ids[row, length - n : length].tolist(), self.logprobs[row, :n].tolist()

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        for table, used in (
            (self.ids, self.length),
            (self.logprobs, self.sampled),
            (self._u, self._limit),
        ):
            table[target, : used[source]] = table[source, : used[source]]
        for column in (
            self.last, self.length, self.sampled, self._limit, self._stops,
            self._temperature, self.greedy, self._top_p, self._top_k,
        ):  # fmt: skip
            column[target] = column[source]

    def _set_stops(self, row: int, stops: tuple[int, ...]) -> None:
        missing = len(stops) - self._stops.shape[1]
        if missing > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, missing)), constant_values=-1)
        self._stops[row] = -1
        self._stops[row, : len(stops)] = stops
