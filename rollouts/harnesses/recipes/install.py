"""How a harness gets onto this machine, and whether it is there.

Each installation has a folder of its own, `$PALESTRA_HARNESSES/<name>`, by default
~/.cache/palestra/harnesses/<name>; a program that is on the PATH serves where that folder has none.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Protocol

import orjson

from palestra.rollouts.errors import NotInstalledError


@dataclass(frozen=True, slots=True)
class Installed:
    """A harness that is there."""

    program: str
    """What to run: an absolute path."""
    version: str


class Install(Protocol):
    """One way to install, and to find what was installed."""

    def commands(self, folder: Path) -> Sequence[Sequence[str]]:
        """What to run, in order, so that the harness is in `folder`."""
        ...

    def find(self, folder: Path) -> Installed | None:
        """The harness in `folder` or on the PATH; None where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class Npm:
    """A package of npm, at one version, with the program that it brings."""

    package: str
    version: str
    program: str

    def commands(self, folder: Path) -> Sequence[Sequence[str]]:
        """See Install."""
        quiet = ["--no-audit", "--no-fund", "--loglevel=error"]
        return [["npm", "install", *quiet, "--prefix", str(folder), f"{self.package}@{self.version}"]]

    def find(self, folder: Path) -> Installed | None:
        """See Install."""
        program = folder / "node_modules" / ".bin" / self.program
        if not program.exists():
            return on_path(self.program)
        about = orjson.loads((folder / "node_modules" / self.package / "package.json").read_bytes())
        return Installed(str(program), str(about["version"]))


@dataclass(frozen=True, slots=True)
class Venv:
    """Python packages in a virtual environment of their own; the first one, pinned, brings the program."""

    requirements: tuple[str, ...]
    program: str

    def commands(self, folder: Path) -> Sequence[Sequence[str]]:
        """See Install."""
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        return [[sys.executable, "-m", "venv", str(folder)], [*pip, *self.requirements]]

    def find(self, folder: Path) -> Installed | None:
        """See Install."""
        program = folder / "bin" / self.program
        if not program.exists():
            return on_path(self.program)
        name = self.requirements[0].partition("==")[0]
        packages = [str(p) for p in folder.glob("lib/python*/site-packages")]
        found = next(iter(metadata.distributions(name=name, path=packages)), None)
        return Installed(str(program), found.version) if found is not None else None


@dataclass(frozen=True, slots=True)
class Beside:
    """A Python package of the environment that palestra runs in; its program is this Python."""

    package: str

    def commands(self, folder: Path) -> Sequence[Sequence[str]]:
        """See Install."""
        return [[sys.executable, "-m", "pip", "install", self.package]]

    def find(self, folder: Path) -> Installed | None:
        """See Install."""
        try:
            return Installed(sys.executable, metadata.version(self.package))
        except metadata.PackageNotFoundError:
            return None


@dataclass(frozen=True, slots=True)
class OnPath:
    """A program that users install themselves. `how` is what they type."""

    program: str
    how: tuple[str, ...]

    def commands(self, folder: Path) -> Sequence[Sequence[str]]:
        """See Install."""
        return [self.how]

    def find(self, folder: Path) -> Installed | None:
        """See Install."""
        return on_path(self.program)


def on_path(program: str) -> Installed | None:
    """`program` of the PATH, with the version that it prints."""
    found = shutil.which(program)
    if found is None:
        return None
    try:
        asked = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Installed(found, "unknown")
    return Installed(found, (asked.stdout.strip().splitlines() or ["unknown"])[0][:80])


def folder_of(name: str) -> Path:
    """Where harness `name` is installed."""
    base = os.environ.get("PALESTRA_HARNESSES") or Path.home() / ".cache" / "palestra" / "harnesses"
    return Path(base) / name


def require(name: str, install: Install) -> Installed:
    """The harness. Raises NotInstalledError, which says what to type."""
    folder = folder_of(name)
    found = install.find(folder)
    if found is None:
        typed = " && ".join(shlex.join(command) for command in install.commands(folder))
        raise NotInstalledError(
            f"{name} is not installed: palestra harness install {name}, which runs {typed}"
        )
    return found


def perform(name: str, install: Install) -> Installed:
    """Install, unless it is there. Raises NotInstalledError where a command fails."""
    folder = folder_of(name)
    found = install.find(folder)
    if found is not None:
        return found
    folder.mkdir(parents=True, exist_ok=True)
    for command in install.commands(folder):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            said = "" if done.returncode == 0 else done.stderr.strip()[-500:] or f"exit {done.returncode}"
        except OSError as error:
            said = f"{command[0]}: {error.strerror}"
        if said:
            raise NotInstalledError(f"{name} could not be installed: {shlex.join(command)}: {said}")
    return require(name, install)
