"""What an agent may try to use up: processes, memory, disk, output, time. None may succeed, in either backend."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palestra.envs.sandbox.base import Backend, Sandbox
from palestra.envs.sandbox.errors import SandboxLostError
from sandboxes import MIB, SMALL, base_image, python


def test_a_fork_bomb_is_bounded_and_ended(fresh: Sandbox) -> None:
    done = fresh.exec("b() { b | b & b; }; b; wait", timeout_s=2)
    assert done.exit_code != 0 or done.timed_out
    count = fresh.exec("true", timeout_s=5)
    assert count.exit_code in (0, 126)
    fresh.exec("sleep 9", timeout_s=0.1)
    assert fresh.exec("echo alive; pgrep -c bash").stdout.split()[0] == b"alive"


def test_the_number_of_processes_is_bounded(fresh: Sandbox) -> None:
    code = """
        import os, time
        count = 0
        try:
            while count < 500:
                if os.fork() == 0:
                    time.sleep(60)
                count += 1
        except OSError:
            print(count)
    """
    done = python(fresh, code)
    assert 0 < int(done.stdout) < SMALL.pids
    assert fresh.exec(["sh", "-c", "exit 1"]).exit_code in (1, 126)


def test_memory_is_bounded(fresh: Sandbox) -> None:
    done = python(fresh, "x = bytearray(1 << 30); print(len(x))")
    assert done.exit_code == -9 and done.breach == "memory" and done.stdout == b""
    assert fresh.exec("echo alive").stdout == b"alive\n"


def test_cpu_time_of_many_processes_is_bounded_together(maker: Backend) -> None:
    code = "import time; end = time.time() + 1.5\nwhile time.time() < end: pass\nprint(time.process_time())"
    spin = f"python3 -c '{code}' & "
    with maker.create(base_image(), dataclasses.replace(SMALL, cpus=0.2)) as sandbox:
        done = sandbox.exec(spin * 2 + "wait", timeout_s=19)
    assert len(done.stdout.split()) == 2 and sum(map(float, done.stdout.split())) < 1.5


def test_memory_of_many_processes_is_bounded_together(fresh: Sandbox) -> None:
    each = "python3 -c 'import time; x = bytearray(60 << 20); time.sleep(1); print(1)' & "
    done = fresh.exec(each * 6 + "wait", timeout_s=15)
    assert done.stdout.count(b"1") < 6
    assert fresh.exec("echo alive").stdout == b"alive\n"


def test_memory_files_are_bounded(fresh: Sandbox) -> None:
    code = """
        import os
        fds = [os.memfd_create(str(i)) for i in range(8)]
        for fd in fds:
            os.write(fd, bytes(60 << 20))
        print("got it")
    """
    assert b"got it" not in python(fresh, code).stdout
    assert fresh.exec("echo alive").stdout == b"alive\n"


def test_the_disk_is_bounded(maker: Backend) -> None:
    if maker.name == "docker":
        pytest.skip("Docker bounds single files only")
    limits = dataclasses.replace(SMALL, disk_bytes=16 * MIB)
    with maker.create(base_image(), limits) as sandbox:
        for place in ("/work", "/tmp", "/dev/shm"):
            done = sandbox.exec(f"head -c 50000000 /dev/zero > {place}/full")
            assert done.exit_code != 0 and b"No space left" in done.stderr and done.breach == "disk"
            with pytest.raises(OSError, match="No space left"):
                sandbox.write(f"{place}/more", bytes(MIB))
            sandbox.exec(f"rm {place}/full")
        assert sandbox.exec("echo fits > /work/x && cat /work/x").stdout == b"fits\n"


def test_one_file_is_bounded(maker: Backend) -> None:
    with maker.create(base_image(), dataclasses.replace(SMALL, disk_bytes=16 * MIB)) as sandbox:
        done = sandbox.exec(["dd", "if=/dev/zero", "of=/work/full", "bs=1M", "count=40"])
        assert done.exit_code != 0 and done.breach == "disk"
        assert len(sandbox.read("/work/full")) <= 16 * MIB


def test_the_number_of_files_is_bounded(maker: Backend) -> None:
    if maker.name == "docker":
        pytest.skip("Docker bounds single files only")
    with maker.create(base_image(), dataclasses.replace(SMALL, disk_bytes=16 * MIB)) as sandbox:
        code = "import os\nos.mkdir('/work/d')\nfor i in range(100_000): os.close(os.open(f'/work/d/{i}', os.O_CREAT))"
        assert b"No space left" in python(sandbox, code, timeout_s=30).stderr


def test_a_flood_does_not_fill_our_memory(shared: Sandbox) -> None:
    done = shared.exec("yes & yes >&2 & wait", timeout_s=15)
    assert done.breach == "output"
    assert len(done.stdout) <= SMALL.output_bytes and len(done.stderr) <= SMALL.output_bytes


def test_a_flood_from_the_background_does_not_hold_the_next_command(shared: Sandbox) -> None:
    shared.exec("yes &")
    assert shared.exec("echo next", timeout_s=10).stdout == b"next\n"
    shared.exec("pkill -9 yes")


def test_nothing_survives_a_timeout(shared: Sandbox) -> None:
    hide = """
        import os, signal, time
        for signum in range(1, 32):
            if signum not in (9, 19): signal.signal(signum, signal.SIG_IGN) if signum not in (17,) else None
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.setsid()
                    time.sleep(4545)
        time.sleep(4545)
    """
    assert python(shared, hide, timeout_s=1).timed_out
    assert shared.exec("pgrep -c python3 || true").stdout == b"0\n"


def test_a_stopped_process_does_not_survive_a_timeout(shared: Sandbox) -> None:
    assert shared.exec("sleep 4646 & kill -STOP $!; kill -STOP $$; sleep 60", timeout_s=0.5).timed_out
    assert shared.exec("pgrep -c sleep || true").stdout == b"0\n"


def test_nothing_is_left_running_after_close(maker: Backend) -> None:
    mark = f"4747.{os.getpid()}"
    sandbox = maker.create(base_image(), SMALL)
    sandbox.exec(f"(setsid sleep {mark} > /dev/null 2>&1 &)")
    deadline = time.monotonic() + 10  # between fork and exec it has no command line
    while not any(mark in line for line in command_lines()):
        assert time.monotonic() < deadline
    sandbox.close()
    assert not any(mark in line for line in command_lines())


def command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


def test_closing_wins_against_a_fork_bomb(maker: Backend) -> None:
    sandbox = maker.create(base_image(), SMALL)
    thread = threading.Thread(target=lambda: _ignore_lost(sandbox))
    thread.start()
    time.sleep(0.5)
    sandbox.close()
    thread.join(20)
    assert not thread.is_alive()


def _ignore_lost(sandbox: Sandbox) -> None:
    with contextlib.suppress(SandboxLostError):
        sandbox.exec("b() { b | b & b; }; b; wait", timeout_s=10)


def test_terminal_input_cannot_be_pushed(shared: Sandbox) -> None:
    code = "import fcntl, pty, os; m, s = pty.openpty(); fcntl.ioctl(s, 0x5412, b'x')"
    assert b"PermissionError" in python(shared, code).stderr or b"OSError" in python(shared, code).stderr
