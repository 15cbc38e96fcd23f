import pytest
from caches import Cache, Stats


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def filled(size, *keys, **options):
    cache = Cache(size, **options)
    for key in keys:
        cache.put(key, key.upper())
    return cache


def test_the_least_recently_used_goes_first():
    cache = filled(2, "a", "b")
    assert cache.get("a") == "A"
    assert cache.put("c", "C") == ["b"] and list(cache) == ["a", "c"]


def test_putting_again_counts_as_use():
    cache = filled(2, "a", "b", "a")
    assert list(cache) == ["b", "a"] and cache.put("c", 1) == ["b"]


def test_looking_whether_it_is_there_does_not():
    cache = filled(2, "a", "b")
    assert "a" in cache and "z" not in cache
    assert cache.put("c", 1) == ["a"]


def test_defaults():
    assert filled(1).get("x") is None and filled(1).get("x", 7) == 7


@pytest.mark.parametrize("size", [0, -1])
def test_a_cache_holds_something(size):
    with pytest.raises(ValueError, match=f"got {size}"):
        Cache(size)


def test_entries_grow_old():
    clock = Clock()
    cache = filled(3, "a", max_age=10, clock=clock)
    clock.now = 9.9
    assert "a" in cache and cache.get("a") == "A"
    clock.now = 10
    assert "a" not in cache and len(cache) == 0 and cache.get("a") is None


def test_reading_does_not_make_younger_but_writing_does():
    clock = Clock()
    cache = filled(3, "a", "b", max_age=10, clock=clock)
    clock.now = 6
    cache.get("a")
    cache.put("b", "B")
    clock.now = 12
    assert list(cache) == ["b"]


def test_the_old_make_room_first():
    clock = Clock()
    cache = filled(2, "a", max_age=10, clock=clock)
    clock.now = 5
    cache.put("b", 1)
    cache.get("a")
    clock.now = 11
    assert cache.put("c", 1) == ["a"] and list(cache) == ["b", "c"] and cache.stats.evicted == 0


def test_weights():
    cache = filled(5, weigh=len)
    cache.put("a", "xx")
    cache.put("b", "yyy")
    assert cache.weight == 5 and cache.put("c", "z") == ["a"] and cache.weight == 4


def test_too_heavy_to_store():
    cache = filled(3, weigh=len)
    cache.put("a", "x")
    cache.put("b", "yy")
    assert cache.put("a", "xxxx") == [] and list(cache) == ["b"]
    cache.put("c", "zzz")
    assert list(cache) == ["c"]


def test_stats():
    cache = filled(1, "a", "b")
    cache.get("b")
    cache.get("a")
    cache.get("c")
    assert cache.stats == Stats(hits=1, misses=2, evicted=1) and cache.stats.hit_rate == pytest.approx(1 / 3)
    assert Stats().hit_rate == 0


def test_get_or_make_makes_once_and_none_is_a_value():
    made = []
    cache = filled(2)
    for _ in range(3):
        assert cache.get_or_make("k", lambda: made.append(1)) is None
    assert made == [1]
