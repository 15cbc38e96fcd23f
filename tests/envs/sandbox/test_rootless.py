"""Namespace sandboxes of an ordinary user, played by an unprivileged child of these tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from needs import need
from palestra.envs.sandbox import cgroups, images
from sandboxes import base_image

NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
TOOLS = ("bash", "cat", "id", "ls", "mkdir", "rm", "sleep", "touch", "chmod", "grep")

SCRIPT = """
import sys
from pathlib import Path
from palestra.envs.sandbox import images
from palestra.envs.sandbox.base import Limits
from palestra.envs.sandbox.namespace import NamespaceBackend

backend = NamespaceBackend()
sandbox = backend.create(images.load("tiny", Path(sys.argv[1])), Limits(pids=20, timeout_s=20))
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that everybody can reach, with a small root file system as a tar."""
    need(os.geteuid() == 0, "root, to become somebody else")
    need(
        Path(SYSTEM_PYTHON).exists() and sys.version_info[:2] == _version(),
        f"{SYSTEM_PYTHON} of the same version",
    )
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o777)
        _tiny_image(path / "tiny.tar")
        yield path


def _version() -> tuple[int, ...]:
    done = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True
    )
    return tuple(map(int, done.stdout.split()))


def _tiny_image(path: Path) -> None:
    root = base_image().layers[0]
    libraries = [
        *root.glob("usr/lib/*/lib[cmt]*.so*"),
        *root.glob("usr/lib/*/lib[ps]*.so*"),
        *root.glob("usr/lib*/ld-*"),
    ]
    files = [
        *libraries,
        *root.glob("usr/lib/*/ld-*"),
        *(root / "usr/bin" / tool for tool in TOOLS),
        root / "etc/passwd",
    ]
    with tarfile.open(path, "w") as tar:
        for link in ("bin", "lib", "lib64"):
            tar.add(root / link, link)
        for file in files:
            tar.add(file, file.relative_to(root))
    path.chmod(0o644)


def as_nobody(place: Path, code: str) -> str:
    source = Path(cgroups.__file__).resolve().parents[2] / "src"
    packages = Path(gymnasium.__file__).parents[1]
    env = {
        "XDG_CACHE_HOME": str(place / "cache"),
        "PYTHONPATH": f"{source}:{packages}",
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(
        [SYSTEM_PYTHON, "-B", "-c", SCRIPT + code, str(place / "tiny.tar")],
        user=NOBODY, group=NOBODY, extra_groups=[], env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    need("user namespaces are off" not in done.stderr, "unprivileged user namespaces")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_ordinary_user_has_isolated_sandboxes(place: Path) -> None:
    code = """
sandbox.write("/work/a", b"1")
print(sandbox.exec("id -un; ls /proc | grep -c '^[0-9]'; grep CapEff /proc/self/status").stdout.split())
twin = sandbox.fork()
twin.exec("rm /work/a; mkdir /work/a; touch /work/a/b")
print(sandbox.read("/work/a"), twin.exec("ls -R /work").stdout.split())
sandbox.reset()
print(sandbox.exec("ls /work").stdout)
backend.close()
"""
    lines = as_nobody(place, code).splitlines()
    user, processes, _, capabilities = eval(lines[0])
    assert user == b"agent" and int(processes) < 8 and int(capabilities, 16) == 0
    assert lines[1:] == ["b'1' [b'/work:', b'a', b'/work/a:', b'b']", "b''"]


def test_an_ordinary_user_is_bounded_too(place: Path) -> None:
    code = """
print(sandbox.exec("for i in {1..60}; do sleep 5 & done; jobs", timeout_s=10).exit_code)
print(sandbox.exec("kill -9 1; kill -9 -1").exit_code, sandbox.exec("cat /proc/1/environ /proc/1/mem").stdout)
print(sandbox.exec("echo alive").stdout, len(backend.lacks()))
"""
    lines = as_nobody(place, code).splitlines()
    assert lines[0] != "0"
    assert lines[1].endswith("b''") and lines[2] == "b'alive\\n' 2"


def test_images_of_recipes_are_told_apart_by_content(place: Path) -> None:
    assert images.load("tiny", place / "tiny.tar").digest == images.load("tiny", place / "tiny.tar").digest
    assert images.remove("tiny") == 1
