"""A place has no network but the proxy, cannot change the machine, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import needs
from palestra.rollouts.errors import PlaceError
from palestra.rollouts.harnesses.place import (
    OUTPUT_BYTES,
    Ended,
    ScratchPlace,
    Wire,
    namespaces,
    scratch_place,
)

ENV = {"PATH": "/usr/bin:/bin"}


@pytest.fixture(params=["isolated", "bare"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ScratchPlace]:
    isolated = request.param == "isolated"
    if isolated:
        _need_namespaces()
    wire = Wire("http://127.0.0.1:1", tmp_path / "socket")
    async with scratch_place(wire, isolated=isolated) as made:
        yield made


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[ScratchPlace]:
    """An isolated place whose proxy answers "hello"."""
    _need_namespaces()
    server = await asyncio.start_unix_server(_hello, tmp_path / "socket")
    async with scratch_place(Wire("", tmp_path / "socket")) as made:
        yield made
    server.close()


def _need_namespaces() -> None:
    try:
        namespaces()
    except PlaceError as error:
        needs.need(False, str(error))


async def _hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
    writer.close()


async def bash(place: ScratchPlace, script: str, timeout_s: float = 30.0) -> Ended:
    return await place.run(["bash", "-c", script], env=ENV, timeout_s=timeout_s)


async def running(word: str) -> bool:
    """Whether a command that says `word` goes on; one that was killed needs a moment to be gone."""
    for _ in range(100):
        if subprocess.run(["pgrep", "-f", word], capture_output=True, check=False).returncode != 0:
            return False
        await asyncio.sleep(0.05)
    return True


async def test_a_command_has_its_files_its_directory_and_no_input(place: ScratchPlace) -> None:
    await place.write({"home/a/b.txt": "words", "bin/tool": "#!/bin/sh\necho from $0", "work/c": ""})
    ended = await bash(
        place, f"cat {place.path('home/a/b.txt')}; {place.path('bin/tool')}; ls; pwd; cat; exit 3"
    )
    said = f"wordsfrom {place.path('bin/tool')}\nc\n{place.path('work')}\n"
    assert ended == Ended(3, said, "")


async def test_a_place_is_removed(tmp_path: Path) -> None:
    async with scratch_place(Wire("http://x"), isolated=False) as place:
        root = Path(place.path("home")).parent
        assert root.is_dir()
    assert not root.exists()


async def test_the_time_limit_ends_all_of_it(place: ScratchPlace) -> None:
    mark = f"61.{os.getpid()}"
    ended = await bash(place, f"echo before; sleep {mark} & sleep {mark}", timeout_s=1.0)
    assert ended == Ended(None, "before\n", "")
    assert not await running(f"sleep {mark}")


async def test_what_a_command_leaves_running_ends_with_it(place: ScratchPlace) -> None:
    mark = f"62.{os.getpid()}"
    ended = await bash(place, f"sleep {mark} & echo done")
    assert ended == Ended(0, "done\n", "")
    assert not await running(f"sleep {mark}")


async def test_a_daemon_of_an_isolated_place_ends_too(closed: ScratchPlace) -> None:
    mark = f"63.{os.getpid()}"
    assert (await bash(closed, f"setsid --fork sleep {mark} </dev/null >/dev/null 2>&1")).exit_code == 0
    assert not await running(f"sleep {mark}")


async def test_stopping_and_cancelling_end_it(place: ScratchPlace) -> None:
    mark, stop = f"64.{os.getpid()}", asyncio.Event()
    asyncio.get_running_loop().call_later(0.5, stop.set)
    ended = await place.run(["sleep", mark], env=ENV, timeout_s=60, stop=stop)
    assert ended.exit_code is None
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await bash(place, f"sleep {mark}")
    assert not await running(f"sleep {mark}")


async def test_of_much_output_the_end_is_kept(place: ScratchPlace) -> None:
    ended = await bash(place, f"head -c {5 * OUTPUT_BYTES} /dev/zero | tr '\\0' x; echo end")
    assert len(ended.stdout) == OUTPUT_BYTES and ended.stdout.endswith("xend\n")


async def test_a_program_that_is_not_there_is_said(place: ScratchPlace) -> None:
    try:
        ended = await place.run(["no-such-program"], env=ENV, timeout_s=30)
    except PlaceError as error:
        assert "no-such-program" in str(error)
    else:
        assert ended.exit_code == 127 and "no-such-program" in ended.stderr


async def test_the_proxy_answers_and_nothing_else_does(closed: ScratchPlace) -> None:
    read = "import urllib.request as u, sys; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"
    ended = await closed.run(["python3", "-c", read, closed.proxy_url], env=dict(os.environ), timeout_s=30)
    assert ended.stdout == "hello\n", ended.stderr
    for address in ("http://1.1.1.1/", "http://127.0.0.1:9/"):
        ended = await closed.run(["python3", "-c", read, address], env=dict(os.environ), timeout_s=30)
        assert ended.exit_code == 1 and "URLError" in ended.stderr


async def test_a_proxy_that_is_gone_is_a_broken_connection(tmp_path: Path) -> None:
    """Never an empty answer, which some clients take for the model's."""
    _need_namespaces()
    read = "import urllib.request as u, sys; u.urlopen(sys.argv[1], timeout=5)"
    async with scratch_place(Wire("", tmp_path / "nothing")) as place:
        ended = await place.run(["python3", "-c", read, place.proxy_url], env=dict(os.environ), timeout_s=30)
    assert ended.exit_code == 1 and "reset" in ended.stderr


async def test_the_machine_cannot_be_changed(closed: ScratchPlace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("as it was")
    remount = "mount -o remount,bind,rw"
    undo = f"{remount} /; {remount} {tmp_path}; unshare -Urm {remount} /; nsenter -t 1 -m true"
    ended = await bash(closed, f"{undo}; echo x > {outside}")
    assert outside.read_text() == "as it was"
    assert f"{outside}: Read-only file system" in ended.stderr


async def test_processes_of_the_machine_are_not_seen(closed: ScratchPlace) -> None:
    ended = await bash(closed, f"kill -0 {os.getpid()}")
    assert ended.exit_code == 1


async def test_a_directory_of_the_machine_can_be_worked_in(tmp_path: Path) -> None:
    _need_namespaces()
    async with scratch_place(Wire("", tmp_path / "socket"), work=tmp_path) as place:
        assert (await bash(place, "echo made > file; pwd")).stdout == f"{tmp_path}\n"
    assert (tmp_path / "file").read_text() == "made\n"


def test_isolation_needs_a_socket(tmp_path: Path) -> None:
    with pytest.raises(PlaceError, match="by a unix socket, and there is none"):
        ScratchPlace(tmp_path, Wire("http://127.0.0.1:1"))


def test_a_machine_without_unshare_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    namespaces.cache_clear()
    with pytest.raises(PlaceError, match="install util-linux, or run without isolation"):
        namespaces()
