"""Every sandbox backend does the same: commands, their limits, what runs at the same time, the way out."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from pathlib import Path

import pytest

from echo import EchoServer
from palestra.envs.sandbox.base import Backend, Sandbox
from palestra.envs.sandbox.errors import SandboxLostError
from sandboxes import SMALL, base_image, text

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
