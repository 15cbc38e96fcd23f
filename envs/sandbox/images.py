"""Root file systems for sandboxes: built from recipes without a registry, kept by the hash of what made them.

    image = images.build("base")                                   # ~/.cache/palestra/images/base-<hash>
    image = images.prepare(backend, image, "pip install --no-index /work/wheels/*")   # one more layer, cached

A recipe is a folder of docker/: recipe.toml (parent, packages), setup.sh and a Dockerfile for those who have a
registry. Without a parent it is built by debootstrap, otherwise as an overlayfs layer on its parent. Both need root.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from palestra.envs.sandbox.base import Image, Limits
from palestra.envs.sandbox.cache import cache_dir, locked
from palestra.envs.sandbox.errors import SandboxError, SandboxSetupError
from palestra.envs.sandbox.namespace import NamespaceBackend

RECIPES = Path(__file__).parent / "recipes"
SUITE = "bookworm"
FORMAT = 1
ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/home/agent",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_APT = "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq; apt-get install -qq -y --no-install-recommends"


def names() -> list[str]:
    """Recipes that `build` knows."""
    return sorted(path.parent.name for path in RECIPES.glob("*/recipe.toml"))


def built(name: str) -> Image | None:
    """The image of a recipe if it is in the cache."""
    image = _image(name)
    return image if all(layer.is_dir() for layer in image.layers) else None


def build(name: str) -> Image:
    """Build a recipe unless it is in the cache: a minute or two the first time.

    Raises SandboxSetupError for an unknown name, without root or debootstrap, or where the build fails.
    """
    image = _image(name)
    for recipe, layer in zip(_lineage(name), image.layers, strict=True):
        with locked(layer):
            if not layer.is_dir():
                _build_layer(recipe, layer, image.layers[: image.layers.index(layer)])
    return image


def prepare(
    backend: NamespaceBackend,
    image: Image,
    script: str,
    files: Mapping[str, bytes] | None = None,
    *,
    user: str = "root",
    limits: Limits | None = None,
) -> Image:
    """Run a script in a sandbox of `image` and keep what it wrote as one more layer, cached by what went in.

    `files` are written first, as the image's user. `user` root may write what root owns (/usr, /opt, /etc), but not
    into directories of the agent such as /work: nobody overrides permissions. Nothing has a network. Raises
    SandboxError where the script fails.
    """
    limits = limits or Limits(timeout_s=1800, disk_bytes=4 << 30, memory_bytes=8 << 30)
    digest = _digest(
        image.digest, script, user, {p: hashlib.sha256(d).hexdigest() for p, d in (files or {}).items()}
    )
    layer = cache_dir("images") / f"prepared-{digest[:16]}"
    prepared = replace(image, name=f"{image.name}+{digest[:8]}", layers=(*image.layers, layer), digest=digest)
    with locked(layer):
        if not layer.is_dir():
            _run_and_keep(backend, image, script, files or {}, user, limits, layer)
    return prepared


def save(name: str, path: Path) -> None:
    """Pack the image of a recipe into a tar file, merged. Needs root where it has several layers."""
    with as_tar(build(name)) as stream, path.open("wb") as file:
        shutil.copyfileobj(stream, file)


def load(name: str, path: Path) -> Image:
    """Unpack a tar file of a root file system (`save`, `docker export`) as an image that belongs to this user.

    That is how an ordinary user gets one. Raises SandboxSetupError where it cannot be unpacked.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    layer = cache_dir("images") / f"{name}-{digest[:16]}"
    with locked(layer):
        if not layer.is_dir():
            scratch = layer.with_name(f".{layer.name}.new")
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(mode=0o755)
            _run(
                [
                    "tar",
                    "--extract",
                    "--exclude=./dev/*",
                    "--exclude=dev/*",
                    "--file",
                    str(path),
                    "-C",
                    str(scratch),
                ]
            )
            for inside in ("proc", "dev", "run", "tmp", "work"):
                (scratch / inside).mkdir(exist_ok=True)
            scratch.rename(layer)
    return Image(name, (layer,), digest, ENV)


@contextlib.contextmanager
def as_tar(image: Image) -> Iterator[IO[bytes]]:
    """The merged root file system as a tar stream. Several layers need root, to mount them over one another."""
    tar = "tar --numeric-owner --one-file-system --create --directory"
    command = ["sh", "-c", f'{tar} "$1" .', "sh", str(image.layers[0])]
    if len(image.layers) > 1:
        script = f'mount -t overlay overlay -o ro,lowerdir="$1" /mnt && {tar} /mnt .'
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
        command.append(":".join(map(str, reversed(image.layers))))
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        yield process.stdout
    if process.wait():
        raise SandboxSetupError(f"cannot pack the image {image.name!r}: {command[0]} failed")


def remove(name: str) -> int:
    """Delete a recipe's layer of any version from the cache; how many there were."""
    layers = [path for path in cache_dir("images").glob(f"{name}-*") if path.is_dir()]
    for layer in layers:
        shutil.rmtree(layer)
    return len(layers)


def _run_and_keep(
    backend: NamespaceBackend,
    image: Image,
    script: str,
    files: Mapping[str, bytes],
    user: str,
    limits: Limits,
    layer: Path,
) -> None:
    with backend.create(image, limits) as sandbox:
        for path, data in files.items():
            sandbox.write(path, data)
        done = sandbox.exec(["bash", "-euo", "pipefail", "-c", script], user=user)
        if done.exit_code:
            tail = (done.stdout + done.stderr)[-2000:].decode(errors="replace")
            raise SandboxError(f"preparing {image.name} failed with status {done.exit_code}: {tail}")
        sandbox.export(layer)


def _recipe(name: str) -> dict[str, Any]:
    path = RECIPES / name / "recipe.toml"
    if not path.is_file():
        raise SandboxSetupError(f"no image recipe {name!r}; there are {', '.join(names())}")
    return tomllib.loads(path.read_text())


def _lineage(name: str) -> list[str]:
    parent = _recipe(name).get("parent")
    return [*(_lineage(parent) if parent else []), name]


def _image(name: str) -> Image:
    digest, layers = "", []
    for recipe in _lineage(name):
        digest = _digest(digest, _recipe(recipe), (RECIPES / recipe / "setup.sh").read_text(), SUITE, FORMAT)
        layers.append(cache_dir("images") / f"{recipe}-{digest[:16]}")
    return Image(name, tuple(layers), digest, ENV)


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _build_layer(recipe: str, layer: Path, below: tuple[Path, ...]) -> None:
    if os.geteuid() != 0:
        raise SandboxSetupError(
            f"building the image {recipe!r} needs root: sudo palestra sandbox build {recipe}"
        )
    packages = _recipe(recipe)["packages"]
    setup = (RECIPES / recipe / "setup.sh").read_text()
    work = Path(tempfile.mkdtemp(prefix=f".{recipe}-", dir=layer.parent))
    try:
        root = work / "root"
        root.mkdir(mode=0o755)
        _bootstrap(root, packages, setup) if not below else _extend(work, below, packages, setup)
        root.rename(layer)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _bootstrap(root: Path, packages: list[str], setup: str) -> None:
    if shutil.which("debootstrap") is None:
        raise SandboxSetupError("debootstrap is missing: apt-get install debootstrap")
    _run(["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", SUITE, str(root)])
    # Device nodes are the sandbox's business, and Docker's import wants none.
    shutil.rmtree(root / "dev")
    (root / "dev").mkdir()
    _run(["chroot", str(root), "sh", "-euc", setup])


def _extend(work: Path, below: tuple[Path, ...], packages: list[str], setup: str) -> None:
    for name in ("work", "merged"):
        (work / name).mkdir()
    lower = ":".join(map(str, reversed(below)))
    # resolv.conf is bound, not copied: it is the host's and not part of the image.
    script = f"""
        mount -t overlay overlay -o lowerdir={lower},upperdir={work}/root,workdir={work}/work {work}/merged
        mount -t proc proc {work}/merged/proc
        mount -t tmpfs tmpfs {work}/merged/run
        mount --rbind /dev {work}/merged/dev
        cat /etc/resolv.conf > {work}/merged/run/resolv.conf
        ln -sf /run/resolv.conf {work}/merged/etc/resolv.conf
        chroot {work}/merged sh -euc "$1"
        rm -f {work}/merged/etc/resolv.conf
    """
    inside = f"{_APT} {' '.join(packages)}\n{setup}"
    _run(["unshare", "--mount", "--propagation", "private", "sh", "-euc", script, "sh", inside])


def _run(command: list[str]) -> None:
    env = {**os.environ, "LC_ALL": "C", "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise SandboxSetupError(f"{command[0]} failed with status {done.returncode}:\n{tail}")
