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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Protocol

import orjson

from palestra.envs.sandbox.base import SHARED
from palestra.rollouts.errors import NotInstalledError

_TOOL = "harness"
_IN_VENV = """#!/usr/bin/env {python}
import runpy, sys
sys.path.insert(0, {packages!r})
runpy.run_path({program!r}, run_name="__main__")
"""
"""A virtual environment without its Python; no variable tells the agent's own commands of it."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A harness that is there."""

    program: str
    """What to run: an absolute path."""
    version: str


@dataclass(frozen=True, slots=True)
class Inside:
    """A harness as it is put into a sandbox."""

    program: str
    """What to run: a path inside, or the name that `script` gets."""
    script: str | None = None
    """Starts it. None: `program` needs no help."""
    shared: Mapping[str, Path] = field(default_factory=dict)
    """Of this machine, by the name in the sandbox's SHARED directory."""


class Install(Protocol):
    """One way to install, and to find what was installed."""

    def commands(self, folder: Path) -> Sequence[Sequence[str]]:
        """What to run, in order, so that the harness is in `folder`."""
        ...

    def find(self, folder: Path) -> Installed | None:
        """The harness in `folder` or on the PATH; None where there is none."""
        ...

    def inside(self, folder: Path) -> Inside:
        """How a sandbox gets the harness that is in `folder`. Raises NotInstalledError where it cannot."""
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

    def inside(self, folder: Path) -> Inside:
        """See Install. A script of Node's brings this machine's node, which must be a program of one file."""
        program = folder / "node_modules" / ".bin" / self.program
        shared = {_TOOL: _need(folder, program)}
        command = f"{SHARED}/{_TOOL}/{program.relative_to(folder)}"
        with program.open("rb") as file:
            is_script = b"node" in file.readline(200) if file.read(2) == b"#!" else False
        if is_script:
            node = shutil.which("node")
            if node is None:
                raise NotInstalledError(f"{self.program} needs node, and there is none on the PATH")
            shared["node"], command = Path(node).resolve(), f"{SHARED}/node {command}"
        return Inside(self.program, f'#!/bin/sh\nexec {command} "$@"\n', shared)


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

    def inside(self, folder: Path) -> Inside:
        """See Install. It runs on the sandbox's Python, which must be of the same version as the environment's."""
        program = _need(folder, folder / "bin" / self.program) / "bin" / self.program
        [packages] = folder.glob("lib/python*/site-packages")
        there = f"{SHARED}/{_TOOL}"
        script = _IN_VENV.format(
            python=packages.parent.name,
            packages=f"{there}/{packages.relative_to(folder)}",
            program=f"{there}/{program.relative_to(folder)}",
        )
        return Inside(self.program, script, {_TOOL: folder})


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

    def inside(self, folder: Path) -> Inside:
        """See Install: it cannot."""
        raise NotInstalledError(f"{self.package} runs in palestra's own environment, which no sandbox has")


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

    def inside(self, folder: Path) -> Inside:
        """See Install: the sandbox's image has it."""
        return Inside(self.program)


def _need(folder: Path, program: Path) -> Path:
    """`folder`. Raises NotInstalledError where `program` is not in it."""
    if not program.exists():
        raise NotInstalledError(
            f"{program.name} is on the PATH and not in {folder}: only what `palestra harness install` puts there "
            "can be shared with a sandbox"
        )
    return folder


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
