"""Images: recipes, prepared layers, what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from palestra.envs.sandbox import images
from palestra.envs.sandbox.base import Image
from palestra.envs.sandbox.errors import SandboxError, SandboxSetupError
from palestra.envs.sandbox.namespace import NamespaceBackend
from sandboxes import SMALL, backend, base_image

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def made() -> Iterator[NamespaceBackend]:
    with backend("namespace") as opened:
        assert isinstance(opened, NamespaceBackend)
        yield opened


@pytest.fixture
def image() -> Image:
    return base_image()


@pytest.fixture
def cache(image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepared layers go here; the base image is the real one."""
    monkeypatch.setattr(images, "cache_dir", lambda *parts: tmp_path)
    return tmp_path


def test_recipes_are_those_of_the_docker_folder() -> None:
    assert images.names() == sorted(p.parent.name for p in (ROOT / "docker").glob("*/recipe.toml"))
    assert {"base", "swe", "harness"} <= set(images.names())
    for name in images.names():
        assert (ROOT / "docker" / name / "Dockerfile").is_file() and (
            ROOT / "docker" / name / "setup.sh"
        ).is_file()


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(SandboxSetupError, match="base, harness, python, swe"):
        images.build("bsae")


def test_a_prepared_layer_is_made_once(made: NamespaceBackend, image: Image, cache: Path) -> None:
    script = "cat /work/in > /usr/local/out; rm /etc/hosts; cd /usr/share; rm -r base-files; mkdir base-files"
    first = images.prepare(made, image, script, {"/work/in": b"given"}, limits=SMALL)
    again = images.prepare(made, image, script, {"/work/in": b"given"}, limits=SMALL)
    other = images.prepare(made, image, script, {"/work/in": b"other"}, limits=SMALL)
    assert first == again and first.digest != other.digest
    with made.create(first, SMALL) as sandbox:
        assert sandbox.read("/usr/local/out") == b"given"
        assert sandbox.exec("ls /etc/hosts").exit_code != 0, "a removed file is hidden by the layer"
        assert sandbox.exec("ls /usr/share/base-files").stdout == b"", (
            "so is what a directory held that was made anew"
        )
        assert sandbox.exec("git --version").exit_code == 0
    assert len([p for p in cache.iterdir() if p.is_dir()]) == 2


def test_a_layer_stands_on_a_prepared_layer(made: NamespaceBackend, image: Image, cache: Path) -> None:
    one = images.prepare(made, image, "echo 1 > /one", limits=SMALL)
    two = images.prepare(made, one, "cat /one /one > /two; rm /one", limits=SMALL)
    with made.create(two, SMALL) as sandbox:
        assert sandbox.exec("cat /two; ls /one").stdout == b"1\n1\n"


def test_a_script_that_fails_leaves_no_layer(made: NamespaceBackend, image: Image, cache: Path) -> None:
    with pytest.raises(SandboxError, match="status 3: .*half done"):
        images.prepare(made, image, "echo half done; exit 3", limits=SMALL)
    assert [p for p in cache.iterdir() if p.is_dir()] == []


def test_a_prepared_image_runs_in_docker(made: NamespaceBackend, image: Image, cache: Path) -> None:
    prepared = images.prepare(made, image, "echo kept > /usr/local/kept; rm /etc/hosts", limits=SMALL)
    with backend("docker") as docker, docker.create(prepared, SMALL) as sandbox:
        assert sandbox.read("/usr/local/kept") == b"kept\n"


def test_a_missing_image_says_how_to_get_it(made: NamespaceBackend, image: Image, cache: Path) -> None:
    prepared = images.prepare(made, image, "true", limits=SMALL)
    shutil.rmtree(prepared.layers[-1])
    with pytest.raises(SandboxSetupError, match="palestra sandbox build"), made.create(prepared):
        pass
