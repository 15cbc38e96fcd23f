"""Keys and values: of the sequences being decoded (KeyValueCache) and of prefixes seen before (PrefixStore).

The cache is one tensor with one row per running sequence; running sequences are the first rows, so that a
decode step attends over a plain slice. The store keeps exact-size copies with their token ids, found by a
chained hash over blocks of tokens and then compared token by token, and dropped least recently used first.
A copy in and a copy out cost less than attending over scattered rows would.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from palestra.trajectories.model import IntArray

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class KeyValueRows:
    """Some consecutive rows of a cache, as one forward pass sees them."""

    keys: list[Tensor]
    """Per layer (rows, key heads, capacity, head_dim)."""
    values: list[Tensor]
    length: int
    """Positions below this are attended to."""
    slot_of_row: Tensor

    def slots(self, positions: Tensor) -> Tensor:
        """Index of each (row, column, key head) in a layer's cache as (rows * heads * capacity, head_dim)."""
        return (self.slot_of_row[: len(positions)] + positions.unsqueeze(-1)).reshape(-1)


class KeyValueCache:
    """float32 storage (layers, 2, rows, key heads, capacity, head_dim); capacity doubles when it must.

    Storage starts at zero and rows that turned non-finite are wiped: a masked position still enters attention
    with weight 0, and 0 * nan is nan.
    """

    def __init__(
        self, layers: int, rows: int, heads: int, head_dim: int, capacity: int, device: torch.device
    ) -> None:
        self._storage = torch.zeros(layers, 2, rows, heads, capacity, head_dim, device=device)
        self._index()

    @property
    def capacity(self) -> int:
        return self._storage.shape[4]

    def reserve(self, positions: int) -> bool:
        """Make room for this many positions per row; True when the storage was moved for it."""
        if positions <= self.capacity:
            return False
        old, shape = self._storage, list(self._storage.shape)
        shape[4] = max(positions, 2 * self.capacity)
        self._storage = torch.zeros(shape, device=old.device)
        self._storage[:, :, :, :, : old.shape[4]] = old
        self._index()
        return True

    def rows(self, first: int, stop: int, length: int) -> KeyValueRows:
        """Rows first..stop-1 as a forward pass over positions below `length` needs them."""
        keys = [layer[first:stop] for layer in self._keys]
        values = [layer[first:stop] for layer in self._values]
        return KeyValueRows(keys, values, length, self._slot_of_row)

    def save(self, row: int, n: int) -> Tensor:
        """A copy of the first n positions of a row, (layers, 2, key heads, n, head_dim)."""
        return self._storage[:, :, row, :, :n].clone(memory_format=torch.contiguous_format)

    def load(self, row: int, saved: Tensor, n: int) -> None:
        """Write the first n positions of what `save` gave into a row."""
        self._storage[:, :, row, :, :n] = saved[:, :, :, :n]

    def move(self, source: int, target: int, n: int) -> None:
        """Copy the first n positions of one row over another."""
        self._storage[:, :, target, :, :n] = self._storage[:, :, source, :, :n]

    def wipe(self, row: int) -> None:
        """Set a row to zero."""
        self._storage[:, :, row] = 0.0

    def _index(self) -> None:
        layers, _, rows, heads, capacity, _ = self._storage.shape
        self._keys = [self._storage[layer, 0] for layer in range(layers)]
        self._values = [self._storage[layer, 1] for layer in range(layers)]
        starts = torch.arange(rows * heads, device=self._storage.device) * capacity
        self._slot_of_row = starts.view(rows, 1, heads)


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Token ids with their keys and values (layers, 2, key heads, len(ids), head_dim)."""

    ids: IntArray
    saved: Tensor
    session: str
    blocks: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return self.saved.numel() * self.saved.element_size()


class PrefixStore:
    """Keys and values of token prefixes under one set of weights, least recently used dropped first."""

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes, self._bytes = capacity_bytes, 0
        self._entries: OrderedDict[int, Prefix] = OrderedDict()  # by id(), oldest use first
        self._by_block: dict[int, Prefix] = {}
        self._by_session: dict[str, Prefix] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def enabled(self) -> bool:
        return self._capacity_bytes > 0

    def put(self, ids: IntArray, saved: Tensor, session: str) -> None:
        """Keep a sequence. It replaces what its session kept before when it continues that."""
        before = self._by_session.get(session)
        if before is not None and shared_tokens(before.ids, ids) == len(before.ids):
            self._drop(before)
        entry = Prefix(ids, saved, session, _block_hashes(ids))
        self._entries[id(entry)] = entry
        self._by_block.update(dict.fromkeys(entry.blocks, entry))
        if session:
            self._by_session[session] = entry
        self._bytes += entry.bytes
        while self._bytes > self._capacity_bytes:
            self._drop(next(iter(self._entries.values())))

    def find(self, prompt: IntArray, session: str) -> tuple[Prefix, int] | None:
        """An entry that starts as the prompt does, and on how many tokens they agree.

        The session's own latest sequence when the prompt continues it, otherwise the longest match by blocks.
        """
        own = self._by_session.get(session)
        if own is not None and shared_tokens(own.ids, prompt) == len(own.ids):
            return self._used(own), len(own.ids)
        for block in reversed(_block_hashes(prompt)):
            entry = self._by_block.get(block)
            if entry is not None:
                return self._used(entry), shared_tokens(entry.ids, prompt)
        return None

    def clear(self) -> None:
        """Forget everything, as when the weights change."""
        self._entries.clear()
        self._by_block.clear()
        self._by_session.clear()
        self._bytes = 0

    def _used(self, entry: Prefix) -> Prefix:
        self._entries.move_to_end(id(entry))
        return entry

    def _drop(self, entry: Prefix) -> None:
        del self._entries[id(entry)]
        self._bytes -= entry.bytes
        for block in entry.blocks:
            if self._by_block.get(block) is entry:
                del self._by_block[block]
        if self._by_session.get(entry.session) is entry:
            del self._by_session[entry.session]


def shared_tokens(a: IntArray, b: IntArray) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    first = int(differs.argmax()) if n else 0
    return first if n and differs[first] else n


def _block_hashes(ids: IntArray) -> tuple[int, ...]:
    """One hash per whole block of tokens, each of everything up to the block's end."""
    data = np.ascontiguousarray(ids).tobytes()
    size = BLOCK_TOKENS * ids.itemsize
    hashes, chained = [], 0
    for end in range(size, len(data) + 1, size):
        chained = hash((chained, data[end - size : end]))
        hashes.append(chained)
    return tuple(hashes)
