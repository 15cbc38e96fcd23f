"""Runs one command in namespaces of its own; a program, started by `place.py` under unshare(1).

    python -I -S inside.py '{"relays": {"8650": "/path/socket"}, "writable": ["/path"], "argv": ["ls"]}'

The namespaces have no network but a loopback device. Here it is brought up, each port of `relays` is joined to
the unix socket outside, everything but `writable` becomes read-only, and the command is run. This process is
the first of its pid namespace: when it ends, whatever the command left running ends too. It exits with the
command's status, 128 + n after signal n, 96 where the namespaces do not allow what is done here.
"""

import asyncio
import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys

REFUSED = 96
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_MS_BIND, _MS_REC = 0x1000, 0x4000
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 0x1
_PR_CAPBSET_DROP = 24
_KEPT_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 8, 10}
"""To own, to switch users, to kill, to bind low ports. Not to mount or to trace: that would undo the rest."""
_CHUNK = 1 << 16


def main() -> None:
    """Prepare, run, and leave with the command's status."""
    plan = json.loads(sys.argv[1])
    try:
        _bring_loopback_up()
        libc = ctypes.CDLL(None, use_errno=True)
        _protect(libc, plan["writable"])
        _drop_capabilities(libc)
        servers = {path: socket.create_server(("127.0.0.1", int(p))) for p, path in plan["relays"].items()}
    except OSError as error:
        print(f"inside: {error}", file=sys.stderr)
        sys.exit(REFUSED)
    if servers and os.fork() == 0:
        os.closerange(0, 3)  # or whoever reads the command's output would wait for this process
        asyncio.run(_relay(servers))
    for server in servers.values():
        server.close()
    os._exit(_run(plan["argv"]))


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _protect(libc: ctypes.CDLL, writable: list[str]) -> None:
    """Make all mounts read-only, but for the directories of `writable`."""
    for path in writable:
        name = path.encode()
        _checked(libc.mount(name, name, None, _MS_BIND | _MS_REC, None), f"bind {path}")
    _set_read_only(libc, "/", True)
    for path in writable:
        _set_read_only(libc, path, False)
    os.chdir(os.getcwd())  # into the new mount of the same directory


def _set_read_only(libc: ctypes.CDLL, path: str, on: bool) -> None:
    setting = struct.pack("4Q", _MOUNT_ATTR_RDONLY * on, _MOUNT_ATTR_RDONLY * (not on), 0, 0)
    status = libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, setting, len(setting))
    _checked(status, f"mount_setattr {path}")


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Of all programs that are run from here on."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for capability in range(last + 1):
        if capability not in _KEPT_CAPABILITIES:
            _checked(libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), f"drop capability {capability}")


def _checked(status: int, what: str) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _run(argv: list[str]) -> int:
    """The exit status of `argv`; meanwhile orphans are reaped, as the first process must."""
    try:
        command = subprocess.Popen(argv)
    except OSError as error:
        print(f"inside: {error}", file=sys.stderr)
        return 127
    while True:
        pid, status = os.wait()
        if pid == command.pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


async def _relay(servers: dict[str, socket.socket]) -> None:
    for path, server in servers.items():
        await asyncio.start_server(_joined(path), sock=server)
    await asyncio.Event().wait()


def _joined(path: str):  # type: ignore[no-untyped-def]  # a callback of asyncio
    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_unix_connection(path)
        except OSError:
            writer.transport.abort()  # a broken connection, which clients try again, never an empty answer
            return
        await asyncio.gather(_copy(reader, back), _copy(there, writer))

    return join


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes from one to the other; a broken side breaks the other, an ended one ends it."""
    try:
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
        writer.close()
    except OSError:
        writer.transport.abort()


if __name__ == "__main__":
    main()
