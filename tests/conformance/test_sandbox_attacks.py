"""What an agent may try against its sandbox, one test each. None may succeed, in either backend."""

from __future__ import annotations

import contextlib
import os
import socket
import textwrap
import time
from pathlib import Path

import pytest

from echo import EchoServer
from palestra.envs.sandbox.base import Backend, Sandbox
from sandboxes import SMALL, base_image, python

SYSCALL = """
    import ctypes, os
    libc = ctypes.CDLL(None, use_errno=True)
    def call(*args):
        result = libc.syscall(*args)
        return result if result >= 0 else -ctypes.get_errno()
"""


def syscall(sandbox: Sandbox, arguments: str, user: str) -> int:
    """Result of a system call made inside, or minus its errno."""
    done = python(sandbox, textwrap.dedent(SYSCALL) + f"print(call({arguments}))", user)
    assert done.exit_code == 0, done
    return int(done.stdout)


# The network


def test_no_interface_but_the_loopback(shared: Sandbox) -> None:
    assert shared.exec("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").stdout.split() == [b"lo"]


@pytest.mark.parametrize("address", ["1.1.1.1", "169.254.169.254", "10.0.0.1", "192.168.0.1"])
def test_no_address_outside_is_reached(shared: Sandbox, address: str, user: str) -> None:
    done = shared.exec(f"timeout 3 bash -c 'echo > /dev/tcp/{address}/80'", user=user)
    assert done.exit_code != 0 and b"unreachable" in done.stderr


def test_the_loopback_of_the_host_is_not_ours(shared: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = shared.exec(f"timeout 3 bash -c 'echo > /dev/tcp/127.0.0.1/{server.getsockname()[1]}'")
    assert done.exit_code != 0 and b"refused" in done.stderr


def test_abstract_sockets_of_the_host_are_not_seen(shared: Sandbox) -> None:
    name = f"palestra-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        done = python(shared, f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}')")
    assert b"ConnectionRefusedError" in done.stderr


@pytest.mark.parametrize("family", [40, 38, 17, 16 + 5])  # vsock, alg, packet, rds
def test_other_address_families_do_not_exist(shared: Sandbox, user: str, family: int) -> None:
    done = python(shared, f"import socket; socket.socket({family}, socket.SOCK_DGRAM)", user)
    assert done.exit_code == 1 and (b"not supported" in done.stderr or b"not permitted" in done.stderr)


# Files of the host


def test_no_path_leads_to_a_file_of_the_host(shared: Sandbox, tmp_path: Path, user: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the host's")
    for way in ("", "/proc/1/root", "/proc/self/root", "/../../../..", "/proc/1/cwd"):
        assert b"the host's" not in shared.exec(f"cat {way}{secret}", user=user).stdout


def test_writing_does_not_reach_the_image(shared: Sandbox, maker: Backend) -> None:
    shared.exec("echo evil >> /etc/passwd; echo evil > /usr/bin/evil", user="root")
    with maker.create(base_image(), SMALL) as other:
        assert b"evil" not in other.exec("cat /etc/passwd; ls /usr/bin").stdout
    assert not any((layer / "usr/bin/evil").exists() for layer in base_image().layers)


@pytest.mark.parametrize(
    "link", ["ln -s {} leak", "ln {} leak", "ln -s /proc/1/root{} leak", "ln -s ../../../..{} leak"]
)
def test_a_link_does_not_lead_out(shared: Sandbox, tmp_path: Path, link: str) -> None:
    """Reading and writing from outside follow links as they are inside, never as they would be on the host."""
    target = tmp_path / "target"
    target.write_bytes(b"the host's")
    shared.exec(f"rm -f /work/leak; cd /work; {link.format(target)}")
    with pytest.raises(OSError):
        shared.read("/work/leak")
    with contextlib.suppress(OSError):
        shared.write("/work/leak", b"evil")
    assert target.read_bytes() == b"the host's"


def test_a_directory_swapped_for_a_link_does_not_lead_out(shared: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"the host's")
    shared.exec(f"mkdir -p /work/a; echo mine > /work/a/file; ln -s {tmp_path} /work/b")
    shared.exec("cd /work; (while :; do mv a c; mv b a; mv a b; mv c a; done) > /dev/null 2>&1 &")
    for _ in range(200):
        with contextlib.suppress(OSError):
            assert shared.read("/work/a/file") == b"mine\n"
        with contextlib.suppress(OSError):
            shared.digest("/work")
    shared.exec("pkill -9 bash")
    shared.exec("rm -rf /work/a /work/b /work/c")


def test_a_passed_descriptor_leads_nowhere(shared: Sandbox, user: str) -> None:
    """Of what the host passes in, nothing is a directory, a device of the host or a socket."""
    done = shared.exec("ls -l /proc/self/fd | grep -v -e pipe: -e /dev/null -e total -e /proc/", user=user)
    assert done.stdout == b""


# /proc, /sys, devices


@pytest.mark.parametrize(
    "path",
    ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/sys/vm/drop_caches",
     "/proc/1/oom_score_adj", "/proc/irq/default_smp_affinity", "/proc/sys/net/ipv4/ip_forward"],
)  # fmt: skip
def test_the_kernel_is_not_written_through_proc(shared: Sandbox, path: str, user: str) -> None:
    before = content(path)
    assert shared.exec(f"echo x > {path}", user=user).exit_code != 0
    assert content(path) == before


def content(path: str) -> bytes:
    """What the host has there; empty where that cannot be read, or is about the reader."""
    with contextlib.suppress(OSError):
        return Path(path).read_bytes() if path.startswith("/proc/sys/") else b""
    return b""


@pytest.mark.parametrize(
    "path", ["/proc/kcore", "/proc/1/mem", "/proc/1/environ", "/proc/1/maps", "/proc/kmsg"]
)
def test_memory_is_not_read_through_proc(shared: Sandbox, path: str, user: str) -> None:
    done = shared.exec(f"timeout 2 head -c 16 {path}", user=user)
    assert done.stdout == b""


def test_only_processes_of_the_sandbox_are_seen(shared: Sandbox) -> None:
    pids = shared.exec("ls /proc | grep -E '^[0-9]+$'").stdout.split()
    assert b"1" in pids and len(pids) < 10


def test_descriptors_of_the_server_are_not_reached(shared: Sandbox, user: str) -> None:
    every = """for server in $(grep -l palestra /proc/[0-9]*/comm); do
        fds=${server%comm}fd
        for fd in 0 1 2 3 4 5 6 7 8; do readlink $fds/$fd; cat $fds/$fd; ls $fds/$fd/; done
    done"""
    assert shared.exec(every, user=user).stdout == b""
    assert shared.exec("ls /proc/1/root/etc /proc/1/cwd/", user=user).stdout == b""


def test_sys_gives_nothing_to_write(shared: Sandbox, user: str) -> None:
    found = shared.exec(
        "find /sys -type f -writable 2> /dev/null | while read f; do ( : >> $f ) 2> /dev/null && echo $f; done",
        user=user,
    )
    assert found.stdout == b""


def test_no_device_can_be_made(shared: Sandbox, user: str) -> None:
    done = shared.exec("mknod /tmp/disk b 8 0 || mknod /tmp/mem c 1 1", user=user)
    assert done.exit_code != 0 and b"not permitted" in done.stderr


def test_no_disk_among_the_devices(shared: Sandbox) -> None:
    assert shared.exec("find /dev -type b").stdout == b""
    names = {
        b"null",
        b"zero",
        b"full",
        b"random",
        b"urandom",
        b"tty",
        b"ptmx",
        b"pts/ptmx",
        b"console",
        b"pts/0",
    }
    assert set(shared.exec("cd /dev && find . -type c | cut -c3-").stdout.split()) <= names


# Mounts, namespaces, privileges


@pytest.mark.parametrize(
    "arguments",
    [
        '165, b"none", b"/mnt", b"tmpfs", 0, 0',  # mount
        '166, b"/proc", 2',  # umount2
        '155, b"/", b"/"',  # pivot_root
        '161, b"/tmp"',  # chroot
        "272, 0x10000000",  # unshare: user namespace
        "272, 0x00020000",  # unshare: mounts
        '428, -100, b"/", 1',  # open_tree
        '430, b"tmpfs", 0',  # fsopen
        "308, 0, 0",  # setns
        "304, -100, 0, 0",  # open_by_handle_at
        "321, 0, 0, 0",  # bpf
        "298, 0, 0, -1, -1, 0",  # perf_event_open
        "250, 0, 0, 0, 0, 0",  # keyctl
        "323, 0",  # userfaultfd
        "425, 1, 0",  # io_uring_setup
        "246, 0, 0, 0, 0",  # kexec_load
        "169, 0, 0, 0, 0",  # reboot
        "101, 16, 1, 0, 0",  # ptrace attach
    ],
)
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system call numbers of x86_64")
def test_system_calls_that_open_the_kernel_are_denied(shared: Sandbox, arguments: str, user: str) -> None:
    assert syscall(shared, arguments, user) == -1


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system call numbers of x86_64")
@pytest.mark.parametrize("arguments", ["56, 0x10000000 | 17, 0, 0, 0, 0", "56, 0x00020000 | 17, 0, 0, 0, 0"])
def test_clone_makes_no_namespaces(shared: Sandbox, arguments: str, user: str) -> None:
    assert syscall(shared, arguments, user) == -1


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="system call numbers of x86_64")
def test_other_system_call_tables_are_closed(shared: Sandbox) -> None:
    assert syscall(shared, "0x40000000 + 165, 0, 0, 0, 0, 0", "agent") == -38
    compiled = shared.exec(["python3", "-c", X86_CODE])
    assert compiled.exit_code in (-31, -11), "int 0x80 must end the process"


X86_CODE = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))  # mov eax, 20 (getpid of i386); int 0x80; ret
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
print(ctypes.CFUNCTYPE(ctypes.c_long)(address)())
"""


def test_nobody_has_capabilities(shared: Sandbox, user: str) -> None:
    status = shared.exec(
        "grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs|Seccomp):' /proc/self/status", user=user
    ).stdout
    values = dict(line.split(b":\t") for line in status.splitlines())
    assert {int(values[name], 16) for name in (b"CapInh", b"CapPrm", b"CapEff", b"CapAmb")} == {0}
    assert values[b"NoNewPrivs"] == b"1" and values[b"Seccomp"] == b"2"


def test_a_setuid_program_gives_nothing(fresh: Sandbox) -> None:
    fresh.exec("cp /usr/bin/id /usr/bin/suid-id && chmod 4755 /usr/bin/suid-id", user="root")
    assert b"euid=0" not in fresh.exec("/usr/bin/suid-id; su -c id < /dev/null").stdout


def test_the_agent_is_not_root(shared: Sandbox) -> None:
    done = python(shared, "import os; os.setuid(0)")
    assert b"PermissionError" in done.stderr


# Other processes


def test_the_server_cannot_be_killed(shared: Sandbox, user: str) -> None:
    shared.exec("kill -9 1; kill -TERM 1; kill -STOP 1; kill -SEGV 1", user=user)
    assert shared.exec("echo alive").stdout == b"alive\n"


def test_the_server_runs_commands_though_what_it_forked_ahead_is_hurt(shared: Sandbox) -> None:
    for signal in ("STOP", "KILL"):
        ahead = f"kill -{signal} $(grep -l palestra /proc/[0-9]*/comm | cut -d/ -f3 | grep -v '^1$')"
        assert shared.exec(ahead, user="root").exit_code == 0
        assert shared.exec("echo alive", timeout_s=10).stdout == b"alive\n"


def test_the_server_survives_a_kill_of_everything(shared: Sandbox, user: str) -> None:
    shared.exec("kill -9 -1", user=user)
    assert shared.exec("echo alive").stdout == b"alive\n"


def test_the_server_cannot_be_traced_or_read(shared: Sandbox, user: str) -> None:
    assert syscall(shared, "101, 16, 1, 0, 0", user) == -1
    assert syscall(shared, "310, 1, 0, 0, 0, 0, 0", user) == -1
    assert syscall(shared, "438, 3, 3, 0", user) == -1


def test_the_server_takes_no_orders_from_inside(shared: Sandbox, user: str) -> None:
    """Where it listens on a path, a connection from inside is closed unread."""
    code = """
        import socket, glob
        for path in glob.glob('/run/palestra/*.sock'):
            s = socket.socket(socket.AF_UNIX); s.settimeout(3); s.connect(path)
            s.sendall(b'\\x08\\0\\0\\0op=exec\\0'); print(s.recv(10))
    """
    assert python(shared, code, user).stdout in (b"", b"b''\n")


def test_another_sandbox_is_not_seen(maker: Backend, shared: Sandbox, user: str) -> None:
    with maker.create(base_image(), SMALL) as other:
        other.write("/tmp/secret-of-the-other", b"x")
        other.exec("sleep 4343 > /dev/null 2>&1 &")
        other.exec("python3 -m http.server 8200 --bind 127.0.0.1 > /dev/null 2>&1 &")
        time.sleep(0.5)
        seen = shared.exec(
            "ps aux; ls /tmp /dev/shm /run /run/palestra; echo > /dev/tcp/127.0.0.1/8200", user=user
        )
        assert b"4343" not in seen.stdout and b"secret-of-the-other" not in seen.stdout
        assert b"refused" in seen.stderr
        shared.exec("pkill -9 sleep; kill -9 -1", user=user)
        assert other.exec("pgrep -c sleep").stdout == b"1\n"


def test_ipc_is_not_shared(maker: Backend, shared: Sandbox) -> None:
    code = "import ctypes; print(ctypes.CDLL(None).shmget(4242, 4096, 0o1666))"
    assert int(python(shared, code).stdout) >= 0
    with maker.create(base_image(), SMALL) as other:
        assert python(other, code.replace("0o1666", "0")).stdout == b"-1\n"


def test_the_socket_of_another_session_is_not_reached(
    maker: Backend, tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = [tmp_path_factory.mktemp("s") / "proxy.sock" for _ in range(2)]
    with (
        EchoServer(paths[0]),
        EchoServer(paths[1]),
        maker.create(base_image(), SMALL, sockets={8081: paths[0]}) as mine,
        maker.create(base_image(), SMALL, sockets={8082: paths[1]}),
    ):
        reached = (
            "for i in $(seq 50); do (: < /dev/tcp/127.0.0.1/8081) 2> /dev/null && break; sleep 0.1; done"
        )
        assert mine.exec(f"{reached}; ls /run/palestra | grep -v agent").stdout == b"8081.sock\n"
        assert b"refused" in mine.exec("echo > /dev/tcp/127.0.0.1/8082").stderr
