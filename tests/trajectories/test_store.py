"""The store gives back what it took, refuses what it must, and lives through damage to what is derived."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from palestra.trajectories import codec
from palestra.trajectories.errors import (
    CorruptError,
    DuplicateError,
    EncodeError,
    NoStoreError,
    NotFoundError,
    SchemaError,
    StoreError,
    StoreLockedError,
)
from palestra.trajectories.model import Trajectory
from palestra.trajectories.store import Store

MakeTrajectory = Callable[..., Trajectory]


def same(one: Trajectory, other: Trajectory) -> bool:
    return codec.encode(one) == codec.encode(other)


def fill(path: Path, make: MakeTrajectory, *names: str) -> None:
    with Store.open(path, write=True) as store:
        for name in names:
            store.append(make(name))


class TestAppendAndRead:
    @pytest.mark.parametrize("fsync", [False, True])
    def test_what_was_appended_is_read_by_the_writer_and_after(
        self, tmp_path: Path, make_trajectory: MakeTrajectory, fsync: bool
    ) -> None:
        one, two = make_trajectory("one"), make_trajectory("two", turns=5, size=10_000)
        with Store.open(tmp_path / "a" / "store", write=True, fsync=fsync) as store:
            store.append(one)
            store.append(two)
            assert same(store.get("one"), one)
        with Store.open(tmp_path / "a" / "store") as store:
            assert same(store.get("one"), one) and same(store.get("two"), two)
            assert store.rollout("two") == two.rollout
            assert list(store.rollouts()) == [one.rollout, two.rollout]
            assert [t.rollout.rollout_id for t in store] == ["one", "two"]
            assert len(store) == 2
            assert "one" in store and "three" not in store

    @pytest.mark.parametrize("count", [5, 64, 130])
    def test_filters_keep_commit_order_before_and_after_the_index_is_written(
        self, tmp_path: Path, make_trajectory: MakeTrajectory, count: int
    ) -> None:
        modes = ["train", "eval"]
        with Store.open(tmp_path, write=True) as store:
            for n in range(count):
                ids = {"group_id": f"g{n // 4}", "task_id": f"t{n % 3}", "run_id": f"run{n // 100}"}
                store.append(make_trajectory(f"r{-n}", turns=0, mode=modes[n % 2], **ids))
            _check_filters(store, count)
            with Store.open(tmp_path) as reader:
                _check_filters(reader, count)
        with Store.open(tmp_path) as reader:
            _check_filters(reader, count)

    def test_an_unknown_filter_is_a_mistake(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        with Store.open(tmp_path, write=True) as store, pytest.raises(TypeError, match="grup_id.*group_id"):
            store.ids(grup_id="g")  # type: ignore[call-arg]

    def test_a_long_summary_is_read_whole(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        trajectory = make_trajectory("r", task_id="t" * 100_000)
        with Store.open(tmp_path, write=True) as store:
            store.append(trajectory)
            assert store.rollout("r") == trajectory.rollout

    def test_segments_are_many_and_seen_as_one(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        names = [f"r{n}" for n in range(20)]
        with Store.open(tmp_path, write=True, segment_bytes=4000) as store:
            for name in names:
                store.append(make_trajectory(name))
        assert len(list((tmp_path / "segments").iterdir())) > 5
        with Store.open(tmp_path) as store:
            assert store.ids() == names
            assert all(same(t, make_trajectory(t.rollout.rollout_id)) for t in store)

    def test_threads_may_append_and_read(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        with Store.open(tmp_path, write=True) as store:

            def work(worker: int) -> None:
                for n in range(30):
                    store.append(make_trajectory(f"{worker}-{n}", turns=1))
                    assert store.get(f"{worker}-{n}").rollout.rollout_id in store

            threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(store) == len(set(store.ids())) == 120


def _check_filters(store: Store, count: int) -> None:
    order = [f"r{-n}" for n in range(count)]
    assert store.ids() == store.ids(run_id=None) == order
    assert store.ids(group_id="g1") == order[4:8]
    assert store.ids(task_id="t2", mode="eval") == [f"r{-n}" for n in range(count) if n % 6 == 5]
    assert [r.rollout_id for r in store.rollouts(run_id="run1")] == order[100:]
    assert [t.rollout.rollout_id for t in store.trajectories(group_id="g0", mode="train")] == ["r0", "r-2"]
    assert store.ids(group_id="no such") == []
    assert len(store) == count


class TestOverlays:
    def test_the_latest_of_a_name_counts(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        values = np.array([0.5, -0.5], np.float32)
        with Store.open(tmp_path, write=True) as store:
            store.append(make_trajectory("r"))
            assert store.overlay("r", "gigpo") is None
            for step in range(70):
                store.append_overlay("r", "gigpo", values * step, {"step": step})
            store.append_overlay("r", "grpo", np.ones((2, 3), np.float32))
            _check_overlays(store)
            with Store.open(tmp_path) as reader:
                _check_overlays(reader)
        (tmp_path / "index.sqlite").unlink()
        with Store.open(tmp_path, write=True) as store:
            _check_overlays(store)
            assert store.ids() == ["r"]

    def test_only_over_a_committed_rollout(self, tmp_path: Path) -> None:
        with Store.open(tmp_path, write=True) as store, pytest.raises(NotFoundError):
            store.append_overlay("r", "gigpo", np.empty(0, np.float32))

    def test_only_of_float32(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        fill(tmp_path, make_trajectory, "r")
        with Store.open(tmp_path, write=True) as store, pytest.raises(EncodeError, match="float32"):
            store.append_overlay("r", "gigpo", np.zeros(2))  # type: ignore[arg-type]

    def test_a_reader_sees_a_newer_one(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        with Store.open(tmp_path, write=True) as store, Store.open(tmp_path) as reader:
            store.append(make_trajectory("r"))
            for step in range(130):
                store.append_overlay("r", "a", np.array([step], np.float32))
                found = reader.overlay("r", "a")
                assert found is not None and found[0].tolist() == [step]


def _check_overlays(store: Store) -> None:
    found, other = store.overlay("r", "gigpo"), store.overlay("r", "grpo")
    assert found is not None and other is not None
    assert (found[0].tolist(), found[1]) == ([34.5, -34.5], {"step": 69})
    assert other[0].shape == (2, 3)


class TestRefusals:
    def test_the_same_rollout_twice(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        fill(tmp_path, make_trajectory, "r")
        with Store.open(tmp_path, write=True) as store:
            for _ in range(2):
                with pytest.raises(DuplicateError, match="'r' is committed already"):
                    store.append(make_trajectory("r", turns=3))
            assert len(store) == 1 and same(store.get("r"), make_trajectory("r"))

    def test_an_unknown_rollout_with_a_guess(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        fill(tmp_path, make_trajectory, "run-1/task-1/0", "other")
        with Store.open(tmp_path) as store:
            with pytest.raises(NotFoundError, match="did you mean 'run-1/task-1/0'"):
                store.get("run-1/task1/0")
            with pytest.raises(NotFoundError, match=r"ids\(\) lists"):
                store.rollout("zzz")
            with pytest.raises(KeyError):
                store.get("")

    def test_a_second_writer_until_the_first_is_done(self, tmp_path: Path) -> None:
        with Store.open(tmp_path, write=True), pytest.raises(StoreLockedError, match=r"by process \d+"):
            Store.open(tmp_path, write=True)
        Store.open(tmp_path, write=True).close()

    def test_a_writer_that_failed_to_open_leaves_no_lock(self, tmp_path: Path) -> None:
        Store.open(tmp_path, write=True).close()
        with pytest.raises(ValueError):
            Store.open(tmp_path, write=True, segment_bytes=0)
        Store.open(tmp_path, write=True).close()

    def test_a_reader_does_not_write(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        fill(tmp_path, make_trajectory, "r")
        before = _files(tmp_path)
        with Store.open(tmp_path) as store:
            for write in (
                lambda: store.append(make_trajectory("s")),
                lambda: store.append_overlay("r", "a", np.empty(0, np.float32)),
                lambda: store.put_blob(b""),
            ):
                with pytest.raises(StoreError, match="write=True"):
                    write()
        assert _files(tmp_path) == before

    def test_a_closed_store(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        store = Store.open(tmp_path, write=True)
        store.close()
        store.close()
        for use in (
            store.ids,
            lambda: store.get("r"),
            lambda: store.append(make_trajectory("r")),
            store.__len__,
        ):
            with pytest.raises(StoreError, match="closed"):
                use()

    def test_a_place_without_a_store(self, tmp_path: Path) -> None:
        with pytest.raises(NoStoreError, match="write=True"):
            Store.open(tmp_path / "nothing")
        (tmp_path / "file").write_text("x")
        with pytest.raises(FileNotFoundError):
            Store.open(tmp_path / "file")
        assert not (tmp_path / "nothing").exists()

    @pytest.mark.parametrize("write", [False, True])
    def test_a_store_of_the_future(self, tmp_path: Path, write: bool) -> None:
        Store.open(tmp_path, write=True).close()
        (tmp_path / "store.json").write_text('{"schema": 2}')
        with pytest.raises(SchemaError, match="schema 2.*upgrade"):
            Store.open(tmp_path, write=write)

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", "1"])
    def test_a_store_that_does_not_say_what_it_is(self, tmp_path: Path, text: str) -> None:
        Store.open(tmp_path, write=True).close()
        (tmp_path / "store.json").write_text(text)
        with pytest.raises(CorruptError, match=r"store\.json does not read"):
            Store.open(tmp_path)

    def test_segments_whose_store_json_is_lost(self, tmp_path: Path) -> None:
        Store.open(tmp_path, write=True).close()
        (tmp_path / "store.json").unlink()
        with pytest.raises(CorruptError, match="is lost"):
            Store.open(tmp_path, write=True)

    def test_an_id_that_no_index_can_hold(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        with Store.open(tmp_path, write=True) as store:
            with pytest.raises(EncodeError, match="task_id"):
                store.append(make_trajectory("r", task_id="\ud800"))
            assert len(store) == 0


def _files(path: Path) -> dict[Path, bytes]:
    """But for the two that SQLite itself needs to read beside a writer."""
    return {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and "sqlite-" not in p.name}


class TestBlobs:
    def test_a_blob_comes_back(self, tmp_path: Path) -> None:
        with Store.open(tmp_path, write=True) as store:
            sha256 = store.put_blob(b"picture")
        with Store.open(tmp_path) as store:
            assert store.get_blob(sha256) == b"picture"


class TestReaderBesideAWriter:
    def test_every_record_is_seen_once_and_at_once(
        self, tmp_path: Path, make_trajectory: MakeTrajectory
    ) -> None:
        names = [f"r{n}" for n in range(200)]
        with Store.open(tmp_path, write=True, segment_bytes=20_000) as store, Store.open(tmp_path) as reader:
            for n, name in enumerate(names):
                store.append(make_trajectory(name, turns=1))
                assert name in reader
                if n % 7 == 0:
                    assert reader.ids() == names[: n + 1] and len(reader) == n + 1
            assert len(reader._index._rollouts) < 64, "what the writer has indexed is not kept in memory"
        assert reader.path == tmp_path

    def test_a_writer_may_flush_while_the_reader_scans(
        self, tmp_path: Path, make_trajectory: MakeTrajectory
    ) -> None:
        with Store.open(tmp_path, write=True) as store, Store.open(tmp_path) as reader:
            store.append(make_trajectory("a"))
            reader._index.follow()
            store._index.flush()
            reader._scan()
            assert reader.ids() == ["a"] and len(reader) == 1
            store.append(make_trajectory("b"))
            store._index.flush()
            assert reader.ids() == ["a", "b"] and len(reader) == 2

    def test_a_reader_outlives_the_writer(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        fill(tmp_path, make_trajectory, "a")
        with Store.open(tmp_path) as reader:
            fill(tmp_path, make_trajectory, "b")
            assert reader.ids() == ["a", "b"]

    def test_a_record_in_the_middle_of_being_written_is_not_there_yet(
        self, tmp_path: Path, make_trajectory: MakeTrajectory
    ) -> None:
        fill(tmp_path, make_trajectory, "a", "b")
        (tmp_path / "index.sqlite").unlink()
        segment = tmp_path / "segments" / "000001.seg"
        whole = segment.read_bytes()
        segment.write_bytes(whole[:-10])
        with Store.open(tmp_path) as reader:
            assert reader.ids() == ["a"]
            assert segment.stat().st_size == len(whole) - 10, "a reader cuts nothing"
            with segment.open("ab") as file:
                file.write(whole[-10:])
            assert reader.ids() == ["a", "b"]


class TestTheIndexIsDerived:
    def test_deleted_it_is_made_again(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        fill(tmp_path, make_trajectory, *"abc")
        (tmp_path / "index.sqlite").unlink()
        with Store.open(tmp_path) as reader:
            assert reader.ids() == list("abc")
        with Store.open(tmp_path, write=True) as store:
            assert store.ids() == list("abc")
            store.append(make_trajectory("d"))
        with Store.open(tmp_path) as reader:
            assert reader.ids() == list("abcd")

    @pytest.mark.parametrize("damage", [b"", b"not a database" * 100])
    def test_damaged_it_is_made_again_and_said_so(
        self, tmp_path: Path, make_trajectory: MakeTrajectory, damage: bytes, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(tmp_path, make_trajectory, *"abc")
        (tmp_path / "index.sqlite").write_bytes(damage)
        with Store.open(tmp_path) as reader:
            assert reader.ids() == list("abc")
        assert "index.sqlite does not read" in caplog.text
        for _ in range(2):
            with Store.open(tmp_path, write=True) as store:
                assert store.ids() == list("abc")

    def test_of_another_version_it_is_made_again(
        self, tmp_path: Path, make_trajectory: MakeTrajectory
    ) -> None:
        fill(tmp_path, make_trajectory, *"abc")
        database = sqlite3.connect(tmp_path / "index.sqlite")
        database.execute("PRAGMA user_version = 99")
        database.close()
        with Store.open(tmp_path, write=True) as store:
            assert store.ids() == list("abc")

    def test_the_log_of_a_deleted_index_does_not_come_back(
        self, tmp_path: Path, make_trajectory: MakeTrajectory
    ) -> None:
        fill(tmp_path, make_trajectory, *"abc")
        holder = sqlite3.connect(tmp_path / "index.sqlite")
        holder.execute("DELETE FROM rollouts")
        holder.commit()
        log = (tmp_path / "index.sqlite-wal").read_bytes()
        holder.close()
        (tmp_path / "index.sqlite").unlink()
        (tmp_path / "index.sqlite-wal").write_bytes(log)
        with Store.open(tmp_path, write=True) as store:
            assert store.ids() == list("abc")

    def test_behind_the_segments_it_catches_up(self, tmp_path: Path, make_trajectory: MakeTrajectory) -> None:
        fill(tmp_path, make_trajectory, *"ab")
        index = (tmp_path / "index.sqlite").read_bytes()
        fill(tmp_path, make_trajectory, *"cd")
        (tmp_path / "index.sqlite").write_bytes(index)
        with Store.open(tmp_path, write=True) as store:
            assert store.ids() == list("abcd")

    def test_ahead_of_the_segments_it_says_that_records_are_lost(
        self, tmp_path: Path, make_trajectory: MakeTrajectory
    ) -> None:
        fill(tmp_path, make_trajectory, *"ab")
        segment = tmp_path / "segments" / "000001.seg"
        segment.write_bytes(segment.read_bytes()[:-10])
        for write in (False, True):
            with pytest.raises(CorruptError, match="the end of the file is lost"):
                Store.open(tmp_path, write=write)


class TestDamage:
    def test_a_torn_tail_is_cut_with_a_warning(
        self, tmp_path: Path, make_trajectory: MakeTrajectory, caplog: pytest.LogCaptureFixture
    ) -> None:
        fill(tmp_path, make_trajectory, "a")
        whole = (tmp_path / "segments" / "000001.seg").stat().st_size
        with (tmp_path / "segments" / "000001.seg").open("ab") as file:
            file.write(b"\x00\x01")
        with caplog.at_level(logging.WARNING), Store.open(tmp_path, write=True) as store:
            assert store.ids() == ["a"]
        assert "cut 2 bytes of a half-written record" in caplog.text
        assert (tmp_path / "segments" / "000001.seg").stat().st_size == whole

    def test_a_changed_byte_in_the_middle_is_named_and_the_rest_can_be_read(
        self, tmp_path: Path, make_trajectory: MakeTrajectory
    ) -> None:
        fill(tmp_path, make_trajectory, *"abc")
        segment = tmp_path / "segments" / "000001.seg"
        whole = bytearray(segment.read_bytes())
        place = len(whole) // 2
        whole[place] ^= 1
        segment.write_bytes(whole)
        with Store.open(tmp_path) as store:
            assert same(store.get("a"), make_trajectory("a")) and same(store.get("c"), make_trajectory("c"))
            with pytest.raises(CorruptError, match=r"000001\.seg is damaged at byte \d+"):
                store.get("b")
            with pytest.raises(CorruptError):
                list(store)
        (tmp_path / "index.sqlite").unlink()
        for write in (False, True):
            with pytest.raises(CorruptError, match=r"000001\.seg is damaged at byte \d+"):
                Store.open(tmp_path, write=write)

    def test_a_changed_summary_is_never_believed(
        self, tmp_path: Path, make_trajectory: MakeTrajectory
    ) -> None:
        fill(tmp_path, make_trajectory, "a")
        segment = tmp_path / "segments" / "000001.seg"
        segment.write_bytes(segment.read_bytes().replace(b"tool_loop", b"fool_loop", 1))
        with Store.open(tmp_path) as store, pytest.raises(CorruptError, match=r"000001\.seg is damaged"):
            store.rollout("a")

    def test_a_copied_record_is_not_two_rollouts(
        self, tmp_path: Path, make_trajectory: MakeTrajectory
    ) -> None:
        fill(tmp_path, make_trajectory, "a")
        segment = tmp_path / "segments" / "000001.seg"
        with segment.open("ab") as file:
            file.write(segment.read_bytes()[16:])
        with pytest.raises(CorruptError, match="'a' twice"):
            Store.open(tmp_path, write=True)


def test_store_json_says_the_schema(tmp_path: Path) -> None:
    Store.open(tmp_path, write=True).close()
    assert json.loads((tmp_path / "store.json").read_text()) == {"schema": 1}
