"""Source trees as values: paths and contents, without history, times or owners."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from palestra.tasks.errors import TaskError

Mode = Literal["100644", "100755", "120000"]
NOISE = (
    "__pycache__",
    "*.pyc",
    "*.pyo",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    ".git",
)
"""Names of files and directories that no tree, diff or digest includes."""
_AS_IS = "* -text -eol -ident -filter -working-tree-encoding !diff\n"
_GIT_ENV = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "palestra",
    "GIT_AUTHOR_EMAIL": "palestra@localhost",
    "GIT_COMMITTER_NAME": "palestra",
    "GIT_COMMITTER_EMAIL": "palestra@localhost",
}


@dataclass(frozen=True, slots=True)
class File:
    """One file; `mode` as git has it, and `data` of a link (120000) is its target."""

    data: bytes
    mode: Mode = "100644"


class Tree(Mapping[str, File]):
    """Files by their path relative to the root, with forward slashes, in order of path."""

    def __init__(self, files: Mapping[str, File]) -> None:
        self._files = {path: files[path] for path in sorted(files)}

    def __getitem__(self, path: str) -> File:
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        return f"Tree({len(self)} files, {self.digest[:12]})"

    @property
    def digest(self) -> str:
        """SHA-256 over paths, modes and contents; 64 hex digits."""
        whole = hashlib.sha256()
        for path, file in self._files.items():
            whole.update(f"{file.mode} {len(file.data)} {path}\0".encode() + file.data)
        return whole.hexdigest()

    def text(self, path: str) -> str:
        """The contents of a file as UTF-8 text. Raises KeyError, UnicodeDecodeError."""
        return self._files[path].data.decode()

    def replaced(self, changes: Mapping[str, File]) -> Tree:
        """A tree with some files added or changed."""
        return Tree({**self._files, **changes})

    def without(self, paths: Iterable[str]) -> Tree:
        """A tree without some of its files."""
        gone = set(paths)
        return Tree({path: file for path, file in self._files.items() if path not in gone})

    def to_tar(self) -> bytes:
        """An uncompressed tar archive; equal trees give equal bytes."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path, file in self._files.items():
                archive.addfile(*_member(path, file))
        return buffer.getvalue()

    def write_to(self, directory: Path) -> None:
        """Write the files below `directory`, which must be empty."""
        for path, file in self._files.items():
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.mode == "120000":
                target.symlink_to(file.data.decode())
            else:
                target.write_bytes(file.data)
                target.chmod(0o755 if file.mode == "100755" else 0o644)


def is_noise(path: str) -> bool:
    """Whether a part of `path` is one of NOISE."""
    return any(Path(part).match(name) for part in path.split("/") for name in NOISE)


def from_tar(data: bytes, strip: int = 0) -> Tree:
    """The files of a tar archive of any compression, without the first `strip` parts of their paths.

    Raises TaskError for a path that leads out of the archive.
    """
    files: dict[str, File] = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            path = "/".join(member.name.removeprefix("./").split("/")[strip:])
            if not path or is_noise(path) or not (member.isfile() or member.issym()):
                continue
            if path.startswith("/") or ".." in path.split("/"):
                raise TaskError(f"the archive has a path that leads out of it: {member.name!r}")
            files[path] = _file(archive, member)
    return Tree(files)


def from_directory(directory: Path) -> Tree:
    """The files below `directory`, noise apart."""
    files: dict[str, File] = {}
    for target in sorted(directory.rglob("*")):
        path = target.relative_to(directory).as_posix()
        if is_noise(path):
            continue
        if target.is_symlink():
            files[path] = File(os.readlink(target).encode(), "120000")
        elif target.is_file():
            mode: Mode = "100755" if target.stat().st_mode & 0o100 else "100644"
            files[path] = File(target.read_bytes(), mode)
    return Tree(files)


def from_git(repository: Path, commit: str) -> Tree:
    """The tree of a commit. Raises TaskError with what git says."""
    with tempfile.TemporaryDirectory() as scratch:
        index, files = Path(scratch, "index"), Path(scratch, "files")
        files.mkdir()
        env = {"GIT_INDEX_FILE": str(index)}
        git(repository, "read-tree", commit, env=env)
        git(repository, "checkout-index", "--all", f"--prefix={files}/", env=env)
        return from_directory(files)


def diff(before: Tree, after: Tree) -> str:
    """What turns `before` into `after`, as a git diff with binary files; empty for equal trees."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        git(root, "init", "-q")
        Path(root, ".git/info/attributes").write_text(_AS_IS)
        commits = []
        for name, tree in (("before", before), ("after", after)):
            files = root / name
            files.mkdir()
            tree.write_to(files)
            git(root, f"--work-tree={files}", "add", "-A", "-f", ".")
            commits.append(git(root, "write-tree").decode().strip())
        shown = git(root, "diff", "--binary", "--no-renames", "--no-color", *commits)
    return shown.decode("utf-8", "surrogateescape")


def git(directory: Path, *arguments: str, env: Mapping[str, str] | None = None) -> bytes:
    """What git prints. Raises TaskError with what it says where it fails."""
    command = ["git", "-c", "safe.directory=*", "-c", "core.autocrlf=false", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            capture_output=True,
            check=False,
            env={**os.environ, **_GIT_ENV, **(env or {})},
        )
    except FileNotFoundError as error:
        raise TaskError("git is not installed; it is needed to make tasks and to take diffs") from error
    if done.returncode:
        raise TaskError(f"git {' '.join(arguments)} failed in {directory}: {done.stderr.decode().strip()}")
    return done.stdout


def paths_of(patch: str) -> list[str]:
    """The paths that a git diff touches, sorted. Names with quotes or newlines are not understood."""
    found: set[str] = set()
    for line in patch.splitlines():
        if line.startswith("diff --git a/"):
            found.update(_two_names(line.removeprefix("diff --git a/")))
    return sorted(found)


def _two_names(rest: str) -> Iterable[str]:
    first, _, second = rest.partition(" b/")
    return first, second


def _member(path: str, file: File) -> tuple[tarfile.TarInfo, io.BytesIO | None]:
    info = tarfile.TarInfo(path)
    info.mode = 0o755 if file.mode == "100755" else 0o644
    if file.mode == "120000":
        info.type, info.linkname = tarfile.SYMTYPE, file.data.decode()
        return info, None
    info.size = len(file.data)
    return info, io.BytesIO(file.data)


def _file(archive: tarfile.TarFile, member: tarfile.TarInfo) -> File:
    if member.issym():
        return File(member.linkname.encode(), "120000")
    opened = archive.extractfile(member)
    assert opened is not None
    return File(opened.read(), "100755" if member.mode & 0o100 else "100644")
