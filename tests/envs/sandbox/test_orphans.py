"""An owner that is killed leaves nothing: processes, mounts, namespaces, control groups, containers, directories."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from palestra.envs.sandbox import cgroups, owner
from palestra.envs.sandbox.base import Backend
from sandboxes import backend, base_image

SUPPORT = Path(__file__).resolve().parents[2] / "support"


def killed_owner(kind: str, count: int, mark: str, *, supervisor_too: bool = False) -> tuple[int, set[str]]:
    """Process id of an owner of `count` sandboxes that was killed without warning, and their namespaces."""
    command = [sys.executable, str(SUPPORT / "sandbox_owner.py"), kind, str(count), mark]
    source = Path(cgroups.__file__).resolve().parents[2] / "src"
    env = {**os.environ, "PYTHONPATH": f"{source}:{SUPPORT}"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        supervisors = children(process.pid)
        inside = {child for supervisor in supervisors for child in children(supervisor)}
        spaces = namespaces(*inside) - namespaces(os.getpid())
        process.send_signal(signal.SIGKILL)
        for pid in supervisors if supervisor_too else ():
            os.kill(pid, signal.SIGKILL)
    return process.pid, spaces


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if f"sleep {mark}" in line]


def groups_of(pid: int) -> list[Path]:
    hierarchy = cgroups.find_hierarchy()
    parents = set(hierarchy.parents.values()) if hierarchy else set()
    return [path for parent in parents for path in parent.glob(f"palestra-{pid}-*")]


def namespaces(*pids: int, before_s: float = math.inf) -> set[str]:
    """Network and mount namespaces of some processes, or of all that were started before a moment since boot.

    A namespace's number is given to the next one when it is gone, so those of later processes say nothing.
    """
    found = set()
    for path in [Path(f"/proc/{pid}") for pid in pids] or Path("/proc").glob("[0-9]*"):
        if started_s(path) > before_s:
            continue
        for kind in ("net", "mnt"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(path / "ns" / kind))
    return found


def started_s(process: Path) -> float:
    """When a process was started, in seconds since boot; inf for one that is gone."""
    with contextlib.suppress(OSError):
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return math.inf


def eventually(fact: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize(("count", "supervisor_too"), [(200, False), (20, True)])
def test_namespace_sandboxes_end_with_their_owner(count: int, supervisor_too: bool) -> None:
    backend("namespace").close()
    base_image()
    mark = f"5{os.getpid()}"
    pid, spaces = killed_owner("namespace", count, mark, supervisor_too=supervisor_too)
    assert len(spaces) >= 2 * count
    killed_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    with backend("namespace"):
        assert eventually(lambda: not running(mark))
        assert eventually(lambda: not spaces & namespaces(before_s=killed_s))
        assert groups_of(pid) == []
    assert "upperdir=/t/u" not in Path("/proc/mounts").read_text()


@pytest.mark.xdist_group("docker")
def test_containers_images_and_directories_end_with_their_owner() -> None:
    backend("docker").close()
    base_image()
    mark = f"6{os.getpid()}"
    pid, _ = killed_owner("docker", 3, mark)
    with backend("docker") as made:
        assert eventually(lambda: not running(mark))
        assert eventually(lambda: left_in_docker(made, pid) == [])  # another reaper may be at it
    assert not list(Path(tempfile.gettempdir()).glob(f"palestra-docker-{pid}-*"))


def left_in_docker(made: Backend, pid: int) -> list[str]:
    from palestra.envs.sandbox.docker import DockerBackend
    from palestra.envs.sandbox.docker_rooms import OWNER

    assert isinstance(made, DockerBackend)
    client = made.client
    things = [*client.containers.list(all=True, ignore_removed=True), *client.images.list(all=True)]
    volumes = [v.name for v in client.volumes.list() if "palestra" in v.name]
    return volumes + [t.id for t in things if (t.labels or {}).get(OWNER, "").startswith(f"{pid}-")]


def test_a_label_names_a_living_process() -> None:
    assert owner.alive(owner.label())
    assert not owner.alive(f"{os.getpid()}-1") and not owner.alive("") and not owner.alive("x-y")
    with subprocess.Popen(["sleep", "60"]) as process:
        label = owner.label(process.pid)
        assert owner.alive(label)
        process.kill()
    assert not owner.alive(label)


def test_groups_of_the_living_are_left_alone() -> None:
    with backend("namespace") as first, first.create(base_image()) as sandbox:
        with backend("namespace") as second:
            assert second.reap() == 0
        assert sandbox.exec("true").exit_code == 0
