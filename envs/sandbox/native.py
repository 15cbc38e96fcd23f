"""The C program behind the sandboxes (native/sandbox.h says what it does), compiled once per version."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from palestra.envs.sandbox.cache import cache_dir, locked
from palestra.envs.sandbox.errors import SandboxSetupError

SOURCES = Path(__file__).parent / "native"
FLAGS = (
    "-std=gnu11",
    "-O2",
    "-static",
    "-Wall",
    "-Wextra",
    "-D_FORTIFY_SOURCE=2",
    "-fstack-protector-strong",
)


@functools.cache
def program() -> Path:
    """Path of the statically linked program, for any machine of this architecture. Raises SandboxSetupError."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(repr((FLAGS, os.uname().machine)).encode())
    for source in sources:
        digest.update(source.read_bytes())
    path = cache_dir("bin") / f"palestra-sandbox-{digest.hexdigest()[:16]}"
    with locked(path):
        if not path.exists():
            _compile([s for s in sources if s.suffix == ".c"], path)
    return path


def _compile(sources: list[Path], path: Path) -> None:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SandboxSetupError("no C compiler: apt-get install gcc libc6-dev, or name one in CC")
    scratch = path.with_suffix(".new")
    command = [compiler, *FLAGS, "-o", str(scratch), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SandboxSetupError(f"{compiler} could not build the sandbox program:\n{done.stderr[-2000:]}")
    scratch.rename(path)
