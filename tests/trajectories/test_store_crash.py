"""Writers that are killed and disks that are full: what was acknowledged is there, once."""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from palestra.trajectories import codec
from palestra.trajectories.errors import StoreFullError
from palestra.trajectories.model import Trajectory
from palestra.trajectories.store import Store

MakeTrajectory = Callable[..., Trajectory]

WRITER = """
import os, sys
import numpy as np
from palestra.trajectories.model import Message, Node, Rollout, Score, Trajectory
from palestra.trajectories.store import Store

def made(name, size):
    ids = np.random.default_rng(list(name.encode())).integers(0, 1000, size, dtype=np.int32)
    node = Node(0, None, Message("user", name), ids, np.zeros(size, np.bool_), np.empty(0, np.float32))
    rollout = Rollout(name, "run", "g", "t", 0, 1, "train", "h", "1", "tokens", 0, score=Score(1.0, True))
    return Trajectory(rollout, (node,))
"""

KILLED = f"""{WRITER}
path, life = sys.argv[1:]
with Store.open(path, write=True, segment_bytes=100_000) as store:
    for n in range(1_000_000):
        name = f"life-{{life}}-{{n}}"
        store.append(made(name, 10 + n % 7 * 2000))
        store.append_overlay(name, "advantage", np.full(2, n, np.float32))
        os.write(1, f"{{name}}\\n".encode())
"""

LIMITED = f"""{WRITER}
import json, resource
from palestra.trajectories.errors import StoreFullError
path, limit = sys.argv[1], int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
done, refused = [], []
with Store.open(path, write=True) as store:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    for n in range(200):
        name = f"r{{n}}"
        try:
            store.append(made(name, 1000))
            done.append(name)
        except StoreFullError as error:
            refused.append(name)
            message = str(error)
    assert store.ids() == done and all(n not in store for n in refused)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    for name in refused[:3]:
        store.append(made(name, 1000))
        done.append(name)
    assert store.ids() == done
print(json.dumps([done, refused, message]))
"""


def test_what_a_killed_writer_acknowledged_is_there_once(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    for life in range(6):
        acknowledged += _live_and_die(tmp_path, life, lines=random.Random(life).randrange(1, 150))
        with Store.open(tmp_path, write=life % 2 == 0) as store:
            _check(store, acknowledged)
    (tmp_path / "index.sqlite").unlink()
    with Store.open(tmp_path) as store:
        _check(store, acknowledged)


def test_a_reader_beside_a_live_writer_sees_each_record_once_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        acknowledged = [writer.stdout.readline().decode().strip()]
        with Store.open(tmp_path) as reader:
            for _ in range(60):
                found = reader.ids()
                assert found == [f"life-0-{n}" for n in range(len(found))]
                acknowledged += [writer.stdout.readline().decode().strip() for _ in range(9)]
                assert acknowledged[-1] in reader
                assert reader.get(found[-1]).nodes[0].message.content == found[-1]
        writer.kill()


def _live_and_die(path: Path, life: int, lines: int) -> list[str]:
    """Kill a writer after it has acknowledged `lines` rollouts; all that it acknowledged."""
    command = [sys.executable, "-c", KILLED, str(path), str(life)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        names = [writer.stdout.readline() for _ in range(lines)]
        writer.kill()
        names += writer.stdout.readlines()
    assert all(name.endswith(b"\n") for name in names), "the writer died by itself"
    return [name.decode().strip() for name in names]


def _check(store: Store, acknowledged: list[str]) -> None:
    found = store.ids()
    assert len(found) == len(set(found)) == len(store)
    assert [name for name in found if name in set(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + 6, "at most one per life was written and not acknowledged"
    for trajectory in store:
        name, node = trajectory.rollout.rollout_id, trajectory.nodes[0]
        assert node.message.content == name and len(node.token_ids) == len(node.sampled)
    for name in acknowledged:
        overlay = store.overlay(name, "advantage")
        assert overlay is not None and overlay[0].tolist() == [float(name.rsplit("-")[-1])] * 2


@pytest.mark.parametrize("limit", [16, 17, 40, 4_500, 100_000])
def test_a_file_size_limit_refuses_and_loses_nothing(tmp_path: Path, limit: int) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path), str(limit)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    done, refused, message = json.loads(output)
    assert len(done) + len(refused) == 203
    assert "no space to write" in message and "000001.seg" in message
    with Store.open(tmp_path, write=True) as store:
        assert store.ids() == done
        assert [t.rollout.rollout_id for t in store] == done


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or libc.mount(b"none", os.fsencode(tmp_path), b"tmpfs", 0, b"size=256k") != 0:
        pytest.skip("mounting a small tmpfs needs root and CAP_SYS_ADMIN")
    yield tmp_path
    assert libc.umount2(os.fsencode(tmp_path), 2) == 0, os.strerror(ctypes.get_errno())


def test_a_full_disk_refuses_and_goes_on_when_there_is_space(
    small_disk: Path, make_trajectory: MakeTrajectory
) -> None:
    ballast, done = small_disk / "ballast", list[str]()
    path = small_disk / "store"
    with Store.open(path, write=True, segment_bytes=20_000) as store:
        ballast.write_bytes(bytes(64 * 1024))
        full = _append_until_full(store, make_trajectory, done)
        for _ in range(3):
            with pytest.raises(StoreFullError, match="No space left"):
                store.append(full)
        with pytest.raises(StoreFullError):
            store.put_blob(bytes(100_000))
        assert store.ids() == done
        ballast.unlink()
        store.append(full)
        done.append(full.rollout.rollout_id)
        assert store.ids() == done
    assert not list(path.rglob(".tmp-*"))
    with Store.open(path) as store:
        assert [codec.encode(t) for t in store] == [codec.encode(make_trajectory(n, turns=5)) for n in done]


def test_a_store_on_a_full_disk_can_be_read(small_disk: Path, make_trajectory: MakeTrajectory) -> None:
    done = list[str]()
    with Store.open(small_disk, write=True, segment_bytes=1 << 20) as store:
        _append_until_full(store, make_trajectory, done)
    with Store.open(small_disk) as store:
        assert store.ids() == done
    (small_disk / "index.sqlite").unlink()
    with Store.open(small_disk) as store:
        assert store.ids() == done


def _append_until_full(store: Store, make: MakeTrajectory, done: list[str]) -> Trajectory:
    """The trajectory that did not fit."""
    for n in range(1000):
        trajectory = make(f"r{n}", turns=5)
        try:
            store.append(trajectory)
        except StoreFullError:
            return trajectory
        done.append(trajectory.rollout.rollout_id)
    raise AssertionError("the disk never filled up")
