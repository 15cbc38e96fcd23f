"""Every sandbox backend does the same: commands, files, snapshots."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palestra.envs.sandbox.base import Backend, Sandbox
from palestra.envs.sandbox.errors import SandboxLostError
from sandboxes import SMALL, backend, base_image

KINDS = ["namespace", "docker"]


@pytest.fixture(scope="module", params=[pytest.param(k, marks=pytest.mark.xdist_group(k)) for k in KINDS])
def maker(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with backend(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def shared(maker: Backend) -> Iterator[Sandbox]:
    """One sandbox for tests that leave nothing behind that another could see."""
    with maker.create(base_image(), SMALL) as sandbox:
        yield sandbox


@pytest.fixture
def fresh(maker: Backend) -> Iterator[Sandbox]:
    with maker.create(base_image(), SMALL) as sandbox:
        yield sandbox


def text(sandbox: Sandbox, command: str, **options: object) -> str:
    done = sandbox.exec(command, **options)  # type: ignore[arg-type]
    assert done.exit_code == 0, done
    return done.stdout.decode()


# Commands


def test_output_and_status_come_back(shared: Sandbox) -> None:
    done = shared.exec("echo out; echo err >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert not done.timed_out and not done.truncated and done.breach is None


def test_a_list_is_run_without_a_shell(shared: Sandbox) -> None:
    assert shared.exec(["printf", "%s|", "a b", "$HOME", "*"]).stdout == b"a b|$HOME|*|"


def test_a_string_is_a_script(shared: Sandbox) -> None:
    assert text(shared, "for i in 1 2 3; do\n  echo $((i * i))\ndone | paste -sd+") == "1+4+9\n"


def test_a_long_script_is_run(shared: Sandbox) -> None:
    assert text(shared, "true\n" * 20_000 + "echo end") == "end\n"


def test_what_does_not_exist_is_status_127(shared: Sandbox) -> None:
    done = shared.exec(["no-such-program"])
    assert done.exit_code == 127 and b"no-such-program" in done.stderr


def test_what_cannot_be_run_is_status_126(shared: Sandbox) -> None:
    assert shared.exec(["/etc/passwd"]).exit_code == 126


def test_a_missing_directory_is_status_127(shared: Sandbox) -> None:
    assert shared.exec("true", cwd="/no/such/place").exit_code == 127


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV"])
def test_a_signal_is_a_negative_status(shared: Sandbox, name: str) -> None:
    number = {"TERM": 15, "KILL": 9, "SEGV": 11}[name]
    assert shared.exec(f"kill -{name} $$").exit_code == -number


def test_commands_start_in_the_working_directory(shared: Sandbox) -> None:
    assert text(shared, "pwd") == "/work\n"


def test_a_directory_can_be_given(shared: Sandbox) -> None:
    assert text(shared, "pwd", cwd="/usr/bin") == "/usr/bin\n"
    shared.exec("mkdir -p /work/sub")
    assert text(shared, "pwd", cwd="sub") == "/work/sub\n"


def test_variables_are_added(shared: Sandbox) -> None:
    value = "two words\nand a line 'quoted' \"twice\" ü"
    assert text(shared, 'printf %s "$X"', env={"X": value}) == value
    assert "/usr/bin" in text(shared, "echo $PATH", env={"X": "1"})


def test_variables_of_the_host_are_not_seen(shared: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    assert "SECRET_OF_THE_HOST" not in text(shared, "env")


def test_stdin_is_read_to_its_end(shared: Sandbox) -> None:
    data = os.urandom(300_000)
    assert text(shared, "wc -c", stdin=data).strip() == "300000"
    assert shared.exec("cat", stdin=data[:100_000]).stdout == data[:100_000]


def test_stdin_is_empty_unless_given(shared: Sandbox) -> None:
    assert text(shared, "wc -c").strip() == "0"


def test_binary_and_unicode_output_is_untouched(shared: Sandbox) -> None:
    assert shared.exec(r"printf '\x00\xff\n\r\xe2\x82\xac'").stdout == b"\x00\xff\n\r\xe2\x82\xac"
    assert shared.exec(["echo", "grüß 世界 🎉"]).stdout.decode() == "grüß 世界 🎉\n"


def test_a_nul_byte_is_refused(shared: Sandbox) -> None:
    with pytest.raises(ValueError, match="NUL"):
        shared.exec("echo \0")


def test_a_user_can_be_chosen(shared: Sandbox) -> None:
    assert text(shared, "whoami; echo $HOME") == "agent\n/home/agent\n"
    assert text(shared, "whoami; echo $HOME", user="root") == "root\n/root\n"
    with pytest.raises(ValueError, match="nobody"):
        shared.exec("true", user="nobody")


def test_time_is_measured(shared: Sandbox) -> None:
    done = shared.exec("sleep 0.2")
    assert done.duration_s >= 0.2 and done.cpu_s < done.duration_s


# Limits of a command


def test_a_timeout_ends_a_command_and_keeps_its_output(shared: Sandbox) -> None:
    done = shared.exec("echo before; sleep 60", timeout_s=0.3)
    assert done.timed_out and done.breach == "time" and done.exit_code == -9
    assert done.stdout == b"before\n"


def test_a_timeout_ends_what_ignores_signals(shared: Sandbox) -> None:
    assert shared.exec("trap '' TERM INT HUP; sleep 60; sleep 60", timeout_s=0.3).timed_out


def test_a_timeout_ends_descendants_that_hide(shared: Sandbox) -> None:
    shared.exec(
        "setsid setsid sleep 4242 & (setsid sh -c 'sleep 4242 & sleep 4242') & sleep 60", timeout_s=0.5
    )
    assert text(shared, "pgrep -c 'sleep' || true").strip() == "0"


def test_the_next_command_runs_after_a_timeout(shared: Sandbox) -> None:
    shared.exec("sleep 60", timeout_s=0.1)
    assert text(shared, "echo fine") == "fine\n"


def test_output_is_cut_and_marked(shared: Sandbox) -> None:
    done = shared.exec("head -c 1000000 /dev/zero; head -c 10 /dev/zero >&2; exit 4")
    assert len(done.stdout) == SMALL.output_bytes and len(done.stderr) == 10
    assert done.truncated and done.exit_code == 4 and done.breach is None


def test_a_flood_of_output_is_ended(shared: Sandbox) -> None:
    done = shared.exec("yes", timeout_s=15)
    assert done.breach == "output" and not done.timed_out and len(done.stdout) == SMALL.output_bytes


def test_cpu_time_is_bounded(maker: Backend) -> None:
    import dataclasses

    with maker.create(base_image(), dataclasses.replace(SMALL, cpu_s=1)) as sandbox:
        done = sandbox.exec(["sh", "-c", "while :; do :; done"])
    assert done.exit_code == -24 and done.breach == "cpu"


# Background and concurrency


def test_a_background_process_does_not_hold_the_command(shared: Sandbox) -> None:
    done = shared.exec("sleep 30 & echo started")
    assert done.stdout == b"started\n" and done.duration_s < 15
    assert text(shared, "pgrep -c sleep").strip() == "1"
    shared.exec("pkill sleep")


def test_a_background_server_serves_later_commands(fresh: Sandbox) -> None:
    fresh.exec("cd /etc && python3 -m http.server 8123 --bind 127.0.0.1 > /dev/null 2>&1 &")
    got = text(
        fresh, "for i in $(seq 100); do curl -sf http://127.0.0.1:8123/hostname && break; sleep 0.1; done"
    )
    assert got


def test_commands_run_at_the_same_time(shared: Sandbox) -> None:
    """Each of two waits for what only the other one does."""
    done: list[int] = []
    one, two = (
        "touch /tmp/a; until [ -e /tmp/b ]; do sleep .01; done",
        "until [ -e /tmp/a ]; do sleep .01; done; touch /tmp/b",
    )
    threads = [threading.Thread(target=lambda c=c: done.append(shared.exec(c).exit_code)) for c in (one, two)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [0, 0]


def test_twelve_threads_get_their_own_output(shared: Sandbox) -> None:
    got: dict[int, bytes] = {}

    def ask(n: int) -> None:
        got[n] = b"".join(shared.exec(["echo", str(n)]).stdout for _ in range(5))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {n: f"{n}\n".encode() * 5 for n in range(12)}


def test_zombies_are_reaped(shared: Sandbox) -> None:
    shared.exec("for i in 1 2 3 4 5; do (sleep 0.05 &) ; done")
    time.sleep(0.2)
    assert text(shared, "ps -eo stat | grep -c Z || true").strip() == "0"


def test_kill_ends_what_others_wait_for(shared: Sandbox) -> None:
    done: list[int] = []
    thread = threading.Thread(target=lambda: done.append(shared.exec("touch /tmp/begun; sleep 60").exit_code))
    thread.start()
    shared.exec("until [ -e /tmp/begun ]; do sleep .01; done")
    shared.kill()
    thread.join(20)
    assert done == [-9]


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


# Life


def test_ids_are_unique(maker: Backend, shared: Sandbox) -> None:
    with maker.create(base_image(), SMALL) as other:
        assert other.id != shared.id


def test_a_closed_sandbox_says_so(maker: Backend) -> None:
    sandbox = maker.create(base_image(), SMALL)
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxLostError):
        sandbox.exec("true")


def test_closing_ends_a_running_command(maker: Backend) -> None:
    sandbox = maker.create(base_image(), SMALL)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            sandbox.exec("sleep 60")
        except SandboxLostError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.3)
    sandbox.close()
    thread.join(20)
    assert not thread.is_alive() and len(errors) == 1


# The way out


def test_a_socket_of_the_host_is_reached_through_loopback(
    maker: Backend, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from echo import EchoServer

    path = tmp_path_factory.mktemp("s") / "proxy.sock"
    with EchoServer(path), maker.create(base_image(), SMALL, sockets={8080: path}) as sandbox:
        script = "exec 3<>/dev/tcp/127.0.0.1/8080; echo hello >&3; head -n1 <&3"
        assert text(sandbox, script) == "HELLO\n"
        sandbox.exec("sleep 60", timeout_s=0.2)
        retried = f"for i in $(seq 50); do bash -c '{script}' 2> /dev/null && break; sleep 0.1; done"
        assert text(sandbox, retried) == "HELLO\n"
        sandbox.reset()
        assert text(sandbox, retried) == "HELLO\n"


def test_what_is_shared_can_be_read_and_never_written(
    maker: Backend, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tools = tmp_path_factory.mktemp("tools")
    tools.chmod(0o755)
    (tools / "tool").write_text("#!/bin/sh\necho works\n")
    (tools / "tool").chmod(0o755)
    shared = {"tools": tools, "one-file": tools / "tool"}
    with maker.create(base_image(), SMALL, shared=shared) as sandbox:
        assert text(sandbox, "/run/palestra/tools/tool; /run/palestra/one-file") == "works\nworks\n"
        for write in ("touch /run/palestra/tools/new", "echo x >> /run/palestra/one-file"):
            assert sandbox.exec(write, user="root").exit_code != 0
        sandbox.reset()
        assert text(sandbox, "/run/palestra/tools/tool") == "works\n"
        with sandbox.fork() as twin:
            assert text(twin, "/run/palestra/tools/tool") == "works\n"
    assert [path.name for path in tools.iterdir()] == ["tool"]


def test_a_shared_thing_cannot_be_named_out_of_its_place(maker: Backend, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot name something shared"):
        maker.create(base_image(), SMALL, shared={"../../etc": tmp_path})
