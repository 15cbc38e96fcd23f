"""A pool of sandboxes, played by fakes that count."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from palestra.envs.sandbox.base import Image, Limits, Snapshot
from palestra.envs.sandbox.errors import PoolBusyError, SandboxError
from palestra.envs.sandbox.namespace import NamespaceBackend
from palestra.envs.sandbox.pool import Checkable, Lease, Pool
from sandboxes import SMALL, backend, base_image

IMAGE = Image("fake", (), "0")


class FakeSandbox:
    def __init__(self, name: str) -> None:
        self.id = name
        self.running = True
        self.closed = 0

    def alive(self) -> bool:
        return self.running

    def close(self) -> None:
        self.closed += 1


class FakeMaker:
    def __init__(self, failures: int = 0) -> None:
        self.made: list[FakeSandbox] = []
        self.failures = failures

    def create(
        self,
        source: Image | Snapshot,
        limits: Limits | None = None,
        *,
        sockets: Mapping[int, Path] | None = None,
        shared: Mapping[str, Path] | None = None,
    ) -> Checkable:
        if self.failures:
            self.failures -= 1
            raise SandboxError("no more memory")
        self.made.append(FakeSandbox(f"fake-{len(self.made)}"))
        return cast(Checkable, self.made[-1])


def fake(sandbox: Any) -> FakeSandbox:
    assert isinstance(sandbox, FakeSandbox)
    return sandbox


def test_the_pool_fills_to_its_size_and_no_further() -> None:
    maker = FakeMaker()
    with Pool(maker, IMAGE, size=3) as pool:
        pool.wait_until_full()
        time.sleep(0.05)
        assert len(maker.made) == 3
    assert [s.closed for s in maker.made] == [1, 1, 1]


def test_what_was_taken_is_replaced_and_never_comes_back() -> None:
    maker = FakeMaker()
    with Pool(maker, IMAGE, size=2) as pool:
        seen = set()
        for _ in range(10):
            with pool.acquire() as sandbox:
                seen.add(sandbox.id)
            assert fake(sandbox).closed == 1
        assert len(seen) == 10


def test_a_dead_sandbox_is_not_handed_out() -> None:
    maker = FakeMaker()
    with Pool(maker, IMAGE, size=2) as pool:
        pool.wait_until_full()
        maker.made[0].running = False
        assert pool.acquire().sandbox.id == "fake-1"
        assert maker.made[0].closed == 1


def test_an_old_sandbox_is_replaced() -> None:
    maker = FakeMaker()
    with Pool(maker, IMAGE, size=1, max_age_s=0.05) as pool:
        pool.wait_until_full()
        deadline = time.monotonic() + 5
        while not maker.made[0].closed and time.monotonic() < deadline:
            time.sleep(0.01)
        assert maker.made[0].closed == 1
        assert pool.acquire().sandbox.id != "fake-0"


def test_nobody_gets_more_than_there_may_be() -> None:
    with Pool(FakeMaker(), IMAGE, size=1, max_live=2) as pool:
        pool.acquire()
        pool.acquire()
        with pytest.raises(PoolBusyError, match="2 of 2"):
            pool.acquire(timeout_s=0.05)


def test_whoever_waits_gets_what_another_gives_back() -> None:
    with Pool(FakeMaker(), IMAGE, size=1, max_live=1) as pool:
        lease = pool.acquire()
        threading.Timer(0.05, lease.close).start()
        assert pool.acquire(timeout_s=10).sandbox.id == "fake-1"


def test_a_failure_reaches_whoever_waits_and_passes() -> None:
    with Pool(FakeMaker(failures=1), IMAGE, size=1) as pool:
        with pytest.raises(SandboxError, match="no more memory"):
            pool.acquire()
        assert eventually(pool).sandbox.id == "fake-0"


def eventually(pool: Pool) -> Lease:
    """What `acquire` gives once the pool has tried again."""
    for _ in range(200):
        with contextlib.suppress(SandboxError):
            return pool.acquire(timeout_s=5)
        time.sleep(0.05)
    raise AssertionError("the pool did not recover")


@pytest.mark.parametrize(("size", "max_live"), [(0, 1), (3, 2)])
def test_nonsense_is_refused(size: int, max_live: int) -> None:
    with pytest.raises(ValueError, match="size"):
        Pool(FakeMaker(), IMAGE, size=size, max_live=max_live)


def test_real_sandboxes_come_from_a_pool() -> None:
    made = backend("namespace")
    assert isinstance(made, NamespaceBackend)
    with made, Pool(made, base_image(), SMALL, size=2) as pool:
        for _ in range(5):
            with pool.acquire() as sandbox:
                assert sandbox.exec("echo x >> /work/x; cat /work/x").stdout == b"x\n"


def test_two_backends_live_in_one_process() -> None:
    with backend("namespace") as one, backend("namespace") as other:
        first, second = one.create(base_image(), SMALL), other.create(base_image(), SMALL)
        assert [s.exec("echo here").stdout for s in (first, second)] == [b"here\n"] * 2
        first.close()
        second.close()
