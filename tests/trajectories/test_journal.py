"""Calls on disk before their rollout is: recovered once, after any death, never in place of a commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from palestra.trajectories import codec
from palestra.trajectories.errors import StoreError
from palestra.trajectories.journal import Journal
from palestra.trajectories.model import Failure, Rollout, Trajectory
from palestra.trajectories.store import Store

MakeTrajectory = Callable[..., Trajectory]
LOST = Failure("proxy", "process", "it died", retryable=True)


def lost(trajectory: Trajectory) -> Rollout:
    rollout = trajectory.rollout
    return replace(rollout, rollout_id=f"{rollout.rollout_id}~1", score=None, failure=LOST)


def played(store: Store, trajectory: Trajectory, calls: int | None = None) -> Journal:
    """The journal of a rollout after its first `calls` calls, one by one."""
    journal = store.journal(lost(trajectory), trajectory.rollout.rollout_id)
    for n in range(1, len(trajectory.calls[:calls]) + 1):
        nodes = trajectory.nodes[: trajectory.calls[n - 1].node_id + 1]
        journal.keep(nodes, trajectory.calls[:n], trajectory.tools, {n - 1})
    return journal


def test_what_was_kept_comes_back_as_a_failed_rollout(
    tmp_path: Path, make_trajectory: MakeTrajectory
) -> None:
    whole = make_trajectory("r", turns=4)
    with Store.open(tmp_path, write=True) as store:
        played(store, whole)
    with Store.open(tmp_path, write=True) as store:
        [found] = store
    assert found.rollout.rollout_id == "r~1" and found.rollout.failure == LOST
    assert "4 calls" in found.rollout.findings[-1]
    assert [c.delivered for c in found.calls] == [True, True, True, False]
    assert found.rollout.policy_versions == (3, 3)
    calls = tuple(replace(c, delivered=True) for c in found.calls)
    as_it_was = replace(found, calls=calls, rollout=whole.rollout)
    assert codec.encode(as_it_was) == codec.encode(replace(whole, steps=()))


def test_a_recovery_happens_once(tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
    with Store.open(tmp_path, write=True) as store:
        journal = played(store, make_trajectory("r"))
    kept = journal.path.read_bytes()
    for _ in range(3):
        with Store.open(tmp_path, write=True) as store:
            assert store.ids() == ["r~1"]
            assert not journal.path.exists()
        journal.path.write_bytes(kept)  # as if the process had died before it removed the file


@pytest.mark.parametrize("discarded", [True, False])
def test_a_committed_rollout_is_not_recovered(
    tmp_path: Path, make_trajectory: MakeTrajectory, discarded: bool
) -> None:
    whole = make_trajectory("r")
    with Store.open(tmp_path, write=True) as store:
        journal = played(store, whole)
        store.append(whole)
        if discarded:
            journal.discard()
            journal.discard()
    with Store.open(tmp_path, write=True) as store:
        assert store.ids() == ["r"]
    assert not list((tmp_path / "journal").iterdir())


def test_a_torn_frame_is_dropped_at_every_byte(tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
    whole = make_trajectory("r", turns=2, size=3)
    with Store.open(tmp_path, write=True) as store:
        one = played(store, whole, 1).path.read_bytes()
        store_path = played(store, whole).path
        two = store_path.read_bytes()
    for size in range(0, len(two), 7):
        root = tmp_path / str(size)
        with Store.open(root, write=True):
            pass
        (root / "journal" / store_path.name).write_bytes(two[:size])
        with Store.open(root, write=True) as store:
            assert [len(t.calls) for t in store] == ([1] if size >= len(one) else [])


def test_a_damaged_journal_gives_what_comes_before_the_damage(
    tmp_path: Path, make_trajectory: MakeTrajectory, caplog: pytest.LogCaptureFixture
) -> None:
    whole = make_trajectory("r", turns=3)
    with Store.open(tmp_path, write=True) as store:
        two = len(played(store, whole, 2).path.read_bytes())
        path = played(store, whole).path
    damaged = bytearray(path.read_bytes())
    damaged[two + 40] ^= 1
    path.write_bytes(damaged)
    with Store.open(tmp_path, write=True) as store:
        assert [len(t.calls) for t in store] == [2]
    assert "only the first 2 calls" in caplog.text


def test_a_session_without_calls_leaves_nothing(tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
    with Store.open(tmp_path, write=True) as store:
        played(store, make_trajectory("r"), 0)
        assert not list((tmp_path / "journal").iterdir())


def test_earlier_replies_that_reached_nobody_stay_so(tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
    whole = make_trajectory("r", turns=3)
    with Store.open(tmp_path, write=True) as store:
        journal = store.journal(lost(whole))
        journal.keep(whole.nodes, whole.calls[:2], whole.tools, {0, 1})
        journal.keep(whole.nodes, whole.calls, whole.tools, {0, 2})
        journal.keep(whole.nodes, whole.calls, whole.tools, {0, 2})
    with Store.open(tmp_path, write=True) as store:
        assert [c.delivered for c in store.get("r~1").calls] == [False, True, False]


def test_a_reader_has_no_journal(tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
    Store.open(tmp_path, write=True).close()
    with Store.open(tmp_path) as store, pytest.raises(StoreError, match="open for reading"):
        store.journal(lost(make_trajectory("r")))


@pytest.mark.parametrize("fsync", [True, False])
def test_journals_of_many_rollouts_need_no_descriptors(
    tmp_path: Path, make_trajectory: MakeTrajectory, fsync: bool
) -> None:
    with Store.open(tmp_path, write=True, fsync=fsync) as store:
        for n in range(20):
            played(store, make_trajectory(f"r{n}", turns=1))
    with Store.open(tmp_path, write=True) as store:
        assert store.ids() == [f"r{n}~1" for n in range(20)]
