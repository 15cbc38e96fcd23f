"""Functions that return source trees, for `Repair.source`: a commit of a git repository, a release on PyPI, a folder.

Releases are downloaded once and kept in ~/.cache/palestra/sources (below XDG_CACHE_HOME where that is set).
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import tempfile
import zipfile
from pathlib import Path

from palestra.tasks.errors import TaskError
from palestra.tasks.swe.tree import File, Tree, from_directory, from_git, from_tar, git, is_noise

INDEX = "https://pypi.org/simple"


def git_tree(repository: str, commit: str) -> Tree:
    """The tree of a commit of a local repository. Raises TaskError."""
    return from_git(Path(repository), commit)


def directory_tree(path: str) -> Tree:
    """The files below a folder. Raises TaskError where there is none."""
    if not Path(path).is_dir():
        raise TaskError(f"there is no folder {path}")
    return from_directory(Path(path))


@functools.lru_cache(maxsize=16)
def release_tree(name: str, version: str, sha256: str = "") -> Tree:
    """What a source distribution holds. Raises TaskError where it cannot be had, or is not the one of `sha256`."""
    file = download(name, version)
    data = file.read_bytes()
    if sha256 and (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise TaskError(f"{file.name} has SHA-256 {found}, the task was made from {sha256}")
    return _from_zip(data) if file.suffix == ".zip" else from_tar(data, strip=1)


def sha256_of(name: str, version: str) -> str:
    """SHA-256 of the source distribution, 64 hexadecimal digits. Raises TaskError."""
    return hashlib.sha256(download(name, version).read_bytes()).hexdigest()


def download(name: str, version: str) -> Path:
    """The source distribution of a release, from PyPI or PIP_INDEX_URL. Raises TaskError."""
    folder = cache_dir()
    wanted = tuple(_plain(f"{name}-{version}{end}") for end in (".tar", ".zip", ".tgz"))
    kept = next((f for f in folder.iterdir() if _plain(f.name).startswith(wanted)), None)
    return kept or _download(name, version, folder)


def cache_dir() -> Path:
    """Where downloads are kept; made if need be."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "palestra" / "sources"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def clone(url: str) -> Path:
    """A local copy of a git repository without a work tree, fetched again where it is there. Raises TaskError."""
    folder = cache_dir() / f"{Path(url.rstrip('/')).name.removesuffix('.git')}-{_short(url)}.git"
    if folder.is_dir():
        git(folder, "fetch", "-q", "--all")
    else:
        git(folder.parent, "clone", "-q", "--mirror", url, str(folder))
    return folder


def _download(name: str, version: str, folder: Path) -> Path:
    try:
        from unearth import PackageFinder, UnpackError
    except ModuleNotFoundError as error:
        raise TaskError("unearth is not installed: pip install 'palestra[swe]'") from error
    finder = PackageFinder(index_urls=[os.environ.get("PIP_INDEX_URL", INDEX)], no_binary=[":all:"])
    best = finder.find_best_match(f"{name}=={version}").best
    if best is None:
        raise TaskError(f"PyPI has no source distribution of {name} {version}")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        try:
            finder.download_and_unpack(best.link, Path(scratch, "unpacked"), Path(scratch))
        except (UnpackError, OSError) as error:
            raise TaskError(f"cannot download {best.link.filename}: {error}") from error
        return Path(scratch, best.link.filename).rename(folder / best.link.filename)


def _from_zip(data: bytes) -> Tree:
    """The files of a zip archive with one folder at its top."""
    files = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            path = info.filename.partition("/")[2]
            if path and not info.is_dir() and not is_noise(path) and ".." not in path.split("/"):
                files[path] = File(archive.read(info))
    return Tree(files)


def _plain(name: str) -> str:
    """A file name in lower case with - for _: releases are spelt in several ways."""
    return name.lower().replace("_", "-")


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
