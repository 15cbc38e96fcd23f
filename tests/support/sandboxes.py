"""Sandboxes for tests: the image, the backends, and what to do where one cannot be had."""

from __future__ import annotations

import functools
import textwrap

from needs import need
from palestra.envs.sandbox import images
from palestra.envs.sandbox.backends import open_backend
from palestra.envs.sandbox.base import Backend, Finished, Image, Limits, Sandbox
from palestra.envs.sandbox.errors import SandboxSetupError

MIB = 1 << 20
SMALL = Limits(
    timeout_s=20,
    memory_bytes=128 * MIB,
    disk_bytes=64 * MIB,
    pids=32,
    output_bytes=200_000,
    flood_bytes=4 * MIB,
)
"""Limits that a test can run into quickly."""


def base_image() -> Image:
    """The image that tests/services/sandbox.sh builds."""
    image = images.built("base")
    need(image, "the sandbox image: run tests/services/sandbox.sh as root")
    assert image is not None
    return image


@functools.cache
def _why_not(kind: str) -> str:
    try:
        open_backend(kind).close()
    except SandboxSetupError as error:
        return str(error)
    return ""


def backend(kind: str) -> Backend:
    """A backend of this kind; the test is skipped where this machine has none."""
    need(not _why_not(kind), _why_not(kind))
    return open_backend(kind)


def text(sandbox: Sandbox, command: str, **options: object) -> str:
    """What a command says that must succeed."""
    done = sandbox.exec(command, **options)  # type: ignore[arg-type]
    assert done.exit_code == 0, done
    return done.stdout.decode()


def python(sandbox: Sandbox, code: str, user: str = "agent", timeout_s: float = 15) -> Finished:
    """Run a program of Python's."""
    return sandbox.exec(["python3", "-c", textwrap.dedent(code)], user=user, timeout_s=timeout_s)
