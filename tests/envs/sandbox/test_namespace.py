"""What only namespace sandboxes do: rooms that cannot begin, and whose memory a frozen layer counts as."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from needs import need
from palestra.envs.sandbox.errors import SandboxError, SandboxLostError
from palestra.envs.sandbox.namespace import NamespaceBackend
from sandboxes import MIB, SMALL, backend, base_image, python, text


@pytest.fixture
def maker() -> Iterator[NamespaceBackend]:
    with backend("namespace") as made:
        assert isinstance(made, NamespaceBackend)
        yield made


def test_a_sandbox_that_cannot_be_reset_stays_as_it_is(maker: NamespaceBackend, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    with maker.create(base_image(), SMALL, shared={"tools": tools}) as sandbox:
        sandbox.write("/work/a", b"mine")
        tools.rmdir()
        with pytest.raises(SandboxError, match="tools"):
            sandbox.reset()
        assert not zombies()
        assert sandbox.read("/work/a") == b"mine"
        tools.mkdir()
        pid = sandbox.pid
        sandbox.reset()
        assert text(sandbox, "ls /work") == ""
        assert not Path(f"/proc/{pid}").exists()


def zombies() -> list[int]:
    """Sandboxes that have ended, and that nobody has waited for."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = path.read_text().rpartition(")")
            state, parent = rest.split()[:2]
            if "(palestra" in name and state == "Z" and owned(int(parent)):
                found.append(int(path.parent.name))
    return found


def owned(pid: int) -> bool:
    """Whether a process is a child of this one."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1]) == os.getpid()


def test_a_sandbox_that_cannot_go_on_after_a_snapshot_is_lost(
    maker: NamespaceBackend, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    sandbox = maker.create(base_image(), SMALL, shared={"tools": tools})
    pid = sandbox.pid
    tools.rmdir()
    with pytest.raises(SandboxError, match="tools"):
        sandbox.snapshot()
    with pytest.raises(SandboxLostError):
        sandbox.exec("true")
    sandbox.close()
    assert not Path(f"/proc/{pid}").exists()


def test_the_memory_of_a_snapshot_is_nobody_elses(maker: NamespaceBackend) -> None:
    need(maker.bounded, "control groups for memory: run as root")
    with maker.create(base_image(), SMALL) as first:
        first.exec(f"head -c {60 * MIB} /dev/zero > /work/big")
        saved = first.snapshot()
    for _ in range(5):
        with maker.create(base_image(), SMALL) as other:
            done = python(other, "print(len(bytearray(90 << 20)))")
            assert done.exit_code == 0, done
    saved.close()


def test_groups_are_used_again(maker: NamespaceBackend) -> None:
    need(maker.bounded, "control groups for memory: run as root")
    seen = set()
    for _ in range(12):
        with maker.create(base_image(), SMALL) as sandbox:
            seen.add(Path(f"/proc/{sandbox.pid}/cgroup").read_text())
            with sandbox.fork() as twin:
                assert twin.exec(["true"]).exit_code == 0
    assert len(seen) <= 6
