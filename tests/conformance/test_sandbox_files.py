"""Every sandbox backend does the same: files, snapshots, digests."""

from __future__ import annotations

import os

import pytest

from palestra.envs.sandbox.base import Backend, Sandbox
from palestra.envs.sandbox.errors import SandboxError
from sandboxes import SMALL, base_image, text

# Files


def test_a_file_is_written_and_read(shared: Sandbox) -> None:
    shared.write("/tmp/new/dir/file.bin", bytes(range(256)))
    assert shared.read("/tmp/new/dir/file.bin") == bytes(range(256))
    assert text(shared, "wc -c < /tmp/new/dir/file.bin").strip() == "256"


def test_writing_replaces(shared: Sandbox) -> None:
    shared.write("/tmp/replace", b"a long content")
    shared.write("/tmp/replace", b"short")
    assert shared.read("/tmp/replace") == b"short"


def test_files_belong_to_the_user_and_have_a_mode(shared: Sandbox) -> None:
    shared.write("/work/run.sh", b"#!/bin/sh\necho ran\n", mode=0o755)
    assert text(shared, "./run.sh; stat -c '%U %a' run.sh") == "ran\nagent 755\n"


def test_relative_paths_are_below_the_working_directory(shared: Sandbox) -> None:
    shared.write("rel/x", b"1")
    assert shared.read("/work/rel/x") == b"1"


def test_a_large_file_survives(shared: Sandbox) -> None:
    data = os.urandom(1 << 20) * 20
    shared.write("/tmp/large", data)
    assert shared.read("/tmp/large") == data
    shared.exec("rm /tmp/large")


def test_reading_is_bounded(shared: Sandbox) -> None:
    shared.write("/tmp/ten", b"0123456789")
    assert shared.read("/tmp/ten", max_bytes=4) == b"0123"


def test_names_may_be_anything(shared: Sandbox) -> None:
    name = "/tmp/ü 世界 'q' \"d\" $x\n-rf"
    shared.write(name, b"x")
    assert shared.read(name) == b"x"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/no/such/file", FileNotFoundError),
        ("/etc", IsADirectoryError),
        ("/etc/shadow", PermissionError),
        ("/etc/passwd/x", NotADirectoryError),
        ("/dev/null", OSError),
    ],
)
def test_what_cannot_be_read_says_why(shared: Sandbox, path: str, error: type[OSError]) -> None:
    with pytest.raises(error):
        shared.read(path)


@pytest.mark.parametrize(("path", "error"), [("/etc/new", PermissionError), ("/tmp", IsADirectoryError)])
def test_what_cannot_be_written_says_why(shared: Sandbox, path: str, error: type[OSError]) -> None:
    with pytest.raises(error):
        shared.write(path, b"x")


def test_a_path_that_is_refused_harms_nothing_else(shared: Sandbox) -> None:
    shared.exec("sleep 88 > /dev/null 2>&1 &")
    for _ in range(50):
        with pytest.raises(FileNotFoundError):
            shared.read("/no/such/file")
        with pytest.raises(PermissionError):
            shared.write("/etc/new", b"x")
    assert text(shared, "pkill -cf 'sleep 88'").strip() == "1"


def test_a_pipe_is_no_file_and_does_not_block(shared: Sandbox) -> None:
    shared.exec("mkfifo /tmp/pipe")
    with pytest.raises(OSError):
        shared.read("/tmp/pipe")


def test_root_may_write_what_the_agent_may_not(fresh: Sandbox) -> None:
    fresh.write("/etc/new", b"x", user="root")
    assert fresh.exec("echo y > /etc/new").exit_code != 0
    assert fresh.read("/etc/new") == b"x"


# Snapshots


def test_reset_goes_back_and_ends_everything(fresh: Sandbox) -> None:
    fresh.exec("echo x > /work/x; rm /etc/hosts; sleep 100 > /dev/null 2>&1 &")
    fresh.exec("rm -rf /usr/share/zoneinfo; touch /tmp/y /dev/shm/z", user="root")
    fresh.reset()
    assert text(
        fresh, "ls /work /tmp /dev/shm | grep -c '[xyz]' || true; pgrep -c sleep || true"
    ).split() == ["0", "0"]
    assert fresh.read("/etc/hosts")


def test_a_snapshot_can_be_restored_any_number_of_times(fresh: Sandbox) -> None:
    fresh.write("/work/state", b"1")
    saved = fresh.snapshot()
    for value in (b"2", b"3"):
        fresh.write("/work/state", value)
        fresh.exec("rm /usr/share/none; mkdir /work/more")
        fresh.restore(saved)
        assert fresh.read("/work/state") == b"1"
        assert fresh.exec("ls /work/more").exit_code != 0
    saved.close()


def test_work_goes_on_after_a_snapshot(fresh: Sandbox) -> None:
    fresh.write("/work/a", b"1")
    with_a = fresh.snapshot()
    fresh.exec("rm /work/a; echo 2 > /work/b")
    assert text(fresh, "ls /work") == "b\n"
    without_a = fresh.snapshot()
    fresh.restore(with_a)
    assert text(fresh, "ls /work") == "a\n"
    fresh.restore(without_a)
    assert text(fresh, "ls /work") == "b\n"


def test_forks_do_not_see_one_another(fresh: Sandbox) -> None:
    fresh.write("/work/a", b"common")
    with fresh.fork() as twin:
        fresh.write("/work/a", b"mine")
        twin.exec("rm -r /work/*; echo theirs > /work/b")
        assert fresh.read("/work/a") == b"mine"
        assert text(twin, "cat /work/*") == "theirs\n"
        with twin.fork() as third:
            assert text(third, "cat /work/*") == "theirs\n"
    assert text(fresh, "cat /work/a") == "mine"


def test_a_sandbox_can_be_made_from_a_snapshot(maker: Backend) -> None:
    with maker.create(base_image(), SMALL) as first:
        first.write("/work/a", b"kept")
        saved = first.snapshot()
    with maker.create(saved, SMALL) as second:
        saved.close()
        assert second.read("/work/a") == b"kept"
        second.write("/work/a", b"changed")
        second.reset()
        assert second.read("/work/a") == b"kept"


def test_a_snapshot_lasts_as_long_as_its_block(maker: Backend) -> None:
    with maker.create(base_image(), SMALL) as first:
        first.write("/work/a", b"kept")
        with first.snapshot() as saved, maker.create(saved, SMALL) as second:
            assert second.read("/work/a") == b"kept"
        with pytest.raises(SandboxError, match="closed"):
            maker.create(saved, SMALL)
        first.write("/work/a", b"changed")
        with pytest.raises(SandboxError, match="closed"):
            first.restore(saved)
        assert first.read("/work/a") == b"changed"


# Digest


def test_equal_trees_have_equal_digests(maker: Backend) -> None:
    made = "mkdir -p d/e; echo 1 > d/x; echo 2 > d/e/y; ln -s x d/l; chmod +x d/e/y"
    with maker.create(base_image(), SMALL) as a, maker.create(base_image(), SMALL) as b:
        a.exec(made)
        b.exec(made + "; touch -d 2001-01-01 d/x")
        assert a.digest("/work") == b.digest("/work")


@pytest.mark.parametrize(
    "change",
    ["echo 3 > d/x", "mv d/x d/z", "rm d/e/y", "chmod +x d/x", "ln -sf y d/l", "mkdir d/new", "touch d/new"],
)
def test_every_change_changes_the_digest(shared: Sandbox, change: str) -> None:
    shared.exec("rm -rf /work/*; mkdir -p d/e; echo 1 > d/x; echo 2 > d/e/y; ln -s x d/l")
    before = shared.digest("/work")
    assert shared.digest("/work") == before
    shared.exec(change)
    assert shared.digest("/work") != before


def test_noise_can_be_left_out(shared: Sandbox) -> None:
    shared.exec("rm -rf /work/*; mkdir -p d/__pycache__ keep; echo 1 > d/x")
    before = shared.digest("/work", ["__pycache__", "*.pyc", "d/log"])
    shared.exec("touch d/__pycache__/a d/b.pyc d/log")
    assert shared.digest("/work", ["__pycache__", "*.pyc", "d/log"]) == before
    assert shared.digest("/work") != before


def test_a_digest_does_not_follow_links_out(shared: Sandbox) -> None:
    shared.exec("rm -rf /work/*; ln -s / root; ln -s . self")
    before = shared.digest("/work")
    shared.exec("touch /tmp/elsewhere")
    assert shared.digest("/work") == before
