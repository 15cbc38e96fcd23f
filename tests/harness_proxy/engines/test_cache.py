"""The prefix store: what it finds, what it forgets, and that it never answers with other tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.harness_proxy.engines.embedded.cache import KeyValueCache, PrefixStore, shared_tokens
from palestra.trajectories.model import IntArray

ENTRY_BYTES_PER_TOKEN = 2 * 4


def ids(*values: int) -> IntArray:
    return np.array(values, np.int32)


def saved(tokens: IntArray) -> torch.Tensor:
    """Stands for keys and values (1 layer, 2, 1 head, n, 1): 8 bytes a token."""
    return torch.as_tensor(tokens).float().expand(1, 2, 1, -1).unsqueeze(-1).contiguous()


def put(store: PrefixStore, tokens: IntArray, session: str = "") -> None:
    store.put(tokens, saved(tokens), session)


def test_a_session_finds_its_previous_turn_to_the_token() -> None:
    store = PrefixStore(10_000)
    put(store, np.arange(37, dtype=np.int32), "a")
    found = store.find(np.arange(50, dtype=np.int32), "a")
    assert found is not None
    assert found[1] == 37


def test_others_find_a_shared_prefix_beyond_the_last_whole_block() -> None:
    store = PrefixStore(10_000)
    put(store, np.arange(40, dtype=np.int32), "a")
    prompt = np.concatenate([np.arange(20), [99, 98]]).astype(np.int32)
    found = store.find(prompt, "b")
    assert found is not None
    assert found[1] == 20


def test_nothing_is_found_below_one_block() -> None:
    store = PrefixStore(10_000)
    put(store, np.arange(40, dtype=np.int32))
    assert store.find(np.arange(15, dtype=np.int32), "") is None


def test_a_session_that_went_back_does_not_reuse_what_it_dropped() -> None:
    store = PrefixStore(10_000)
    put(store, np.arange(40, dtype=np.int32), "a")
    edited = np.arange(40, dtype=np.int32)
    edited[30] = 77
    found = store.find(edited, "a")
    assert found is not None
    assert found[1] == 30


def test_the_next_turn_replaces_the_previous_one() -> None:
    store = PrefixStore(10_000)
    for n in (20, 40, 60):
        put(store, np.arange(n, dtype=np.int32), "a")
    assert len(store) == 1


def test_the_least_recently_used_is_dropped() -> None:
    store = PrefixStore(3 * 20 * ENTRY_BYTES_PER_TOKEN)
    prompts = [np.arange(20, dtype=np.int32) + 100 * k for k in range(4)]
    for prompt in prompts[:3]:
        put(store, prompt)
    store.find(prompts[0], "")
    put(store, prompts[3])
    assert [store.find(prompt, "") is not None for prompt in prompts] == [True, False, True, True]


def test_what_is_larger_than_the_store_is_not_kept() -> None:
    store = PrefixStore(10)
    put(store, np.arange(20, dtype=np.int32), "a")
    assert len(store) == 0
    assert store.find(np.arange(20, dtype=np.int32), "a") is None


def test_clear_forgets() -> None:
    store = PrefixStore(10_000)
    put(store, np.arange(40, dtype=np.int32), "a")
    store.clear()
    assert store.find(np.arange(40, dtype=np.int32), "a") is None


tokens = st.lists(st.integers(0, 1), min_size=1, max_size=50)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(tokens, st.sampled_from(["", "a", "b"])), max_size=12),
    st.tuples(tokens, st.sampled_from(["", "a", "b"])),
    st.integers(100, 2_000),
)
def test_what_is_found_is_a_true_prefix(
    puts: list[tuple[list[int], str]], query: tuple[list[int], str], capacity: int
) -> None:
    """With two tokens there are many near matches: whatever is found starts exactly as the prompt does."""
    store = PrefixStore(capacity)
    for values, session in puts:
        put(store, ids(*values), session)
    found = store.find(ids(*query[0]), query[1])
    if found is not None:
        prefix, n = found
        assert prefix.ids[:n].tolist() == query[0][:n]
        assert torch.equal(prefix.saved, saved(prefix.ids))


@given(tokens, tokens)
def test_shared_tokens(a: list[int], b: list[int]) -> None:
    n = shared_tokens(ids(*a), ids(*b))
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


@pytest.mark.parametrize("grow_to", [9, 40])
def test_growing_keeps_what_was_written(grow_to: int) -> None:
    cache = KeyValueCache(2, 3, 2, 4, 8, torch.device("cpu"))
    prefix = torch.randn(2, 2, 2, 8, 4)
    cache.load(1, prefix, 8)
    assert cache.reserve(grow_to)
    assert cache.capacity >= grow_to
    assert torch.equal(cache.save(1, 8), prefix)
    cache.move(1, 2, 8)
    cache.wipe(1)
    assert torch.equal(cache.save(2, 8), prefix)
    assert not cache.save(1, 8).any()
