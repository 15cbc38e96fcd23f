"""Calls on disk before their rollout is: recovered once, after any death, never in place of a commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from palestra.trajectories import codec, shared_file
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


def only_file(root: Path) -> Path:
    """The one file of a store's journal."""
    [path] = (root / "journal").iterdir()
    return path


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
        played(store, make_trajectory("r"))
    path = only_file(tmp_path)
    kept = path.read_bytes()
    for _ in range(3):
        with Store.open(tmp_path, write=True) as store:
            assert store.ids() == ["r~1"]
            assert not path.exists()
        path.write_bytes(kept)  # as if the process had died before it removed the file


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
    one, two = (journal_of(tmp_path / f"of {calls}", whole, calls) for calls in (1, 2))
    for size in range(0, len(two), 7):
        root = tmp_path / str(size)
        with Store.open(root, write=True):
            pass
        (root / "journal" / "0.journal").write_bytes(two[:size])
        with Store.open(root, write=True) as store:
            assert [len(t.calls) for t in store] == ([1] if size >= len(one) else [])


def journal_of(root: Path, trajectory: Trajectory, calls: int) -> bytes:
    """What the journal of a fresh store says after so many calls."""
    with Store.open(root, write=True) as store:
        played(store, trajectory, calls)
    return only_file(root).read_bytes()


def test_a_damaged_journal_gives_what_comes_before_the_damage(
    tmp_path: Path, make_trajectory: MakeTrajectory, caplog: pytest.LogCaptureFixture
) -> None:
    whole = make_trajectory("r", turns=3)
    two = len(journal_of(tmp_path / "of 2", whole, 2))
    damaged = bytearray(journal_of(tmp_path, whole, 3))
    damaged[two + 40] ^= 1
    only_file(tmp_path).write_bytes(damaged)
    with Store.open(tmp_path, write=True) as store:
        assert [len(t.calls) for t in store] == [2]
    assert "only the first 2 calls" in caplog.text


def test_a_session_without_calls_leaves_nothing(tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
    with Store.open(tmp_path, write=True) as store:
        played(store, make_trajectory("r"), 0)
        assert not list((tmp_path / "journal").iterdir())


def test_rollouts_share_a_file_and_are_told_apart(tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
    whole = [make_trajectory(f"r{n}", turns=3) for n in range(4)]
    with Store.open(tmp_path, write=True) as store:
        journals = [played(store, trajectory, 1) for trajectory in whole]
        for trajectory, journal in zip(whole, journals, strict=True):
            journal.keep(trajectory.nodes, trajectory.calls, trajectory.tools, {2})
        journals[1].discard()
        store.append(whole[2])
        assert only_file(tmp_path).stat().st_size
    with Store.open(tmp_path, write=True) as store:
        assert store.ids() == ["r2", "r0~1", "r3~1"]
        for number in (0, 3):
            found = store.get(f"r{number}~1")
            assert [c.seq for c in found.calls] == [0, 1, 2] and len(found.nodes) == len(whole[number].nodes)
    assert not list((tmp_path / "journal").iterdir())


def test_a_large_file_takes_no_more_rollouts_and_goes_with_its_last(
    tmp_path: Path, make_trajectory: MakeTrajectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_file, "_LARGE_BYTES", 100)
    with Store.open(tmp_path, write=True) as store:
        first, second = (played(store, make_trajectory(f"r{n}")) for n in range(2))
        assert len(list((tmp_path / "journal").iterdir())) == 2
        first.discard()
        assert len(list((tmp_path / "journal").iterdir())) == 1
        second.discard()
        assert not list((tmp_path / "journal").iterdir())


def test_nothing_is_kept_in_a_store_that_was_closed(tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
    whole = make_trajectory("r", turns=2)
    with Store.open(tmp_path, write=True) as store:
        journal = played(store, whole, 1)
    with pytest.raises(StoreError, match="closed"):
        journal.keep(whole.nodes, whole.calls, whole.tools, set())


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
