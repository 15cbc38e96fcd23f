"""The root folders and the import names stay one thing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = sorted(p.name for p in (ROOT / "src" / "palestra").iterdir() if p.is_symlink())
HEAVY = {"torch", "transformers", "renderers", "openai", "docker", "playwright", "ray", "vllm"}


def test_every_root_package_has_its_link() -> None:
    packages = {p.parent.name for p in ROOT.glob("*/py.typed")}
    assert set(FOLDERS) == packages
    assert {"trajectories", "tasks", "rewards", "envs", "harness_proxy", "rollouts", "training"} <= packages


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_the_package(folder: str) -> None:
    spec = importlib.util.find_spec(f"palestra.{folder}")
    assert spec is not None and spec.origin is not None
    assert Path(spec.origin).resolve().parent == ROOT / folder


@pytest.mark.parametrize("package", ["", *(f".{f}" for f in FOLDERS), ".cli", ".harness_proxy.engines"])
def test_importing_a_package_loads_nothing_heavy(package: str) -> None:
    loaded = _modules_after(f"import palestra{package}")
    assert not loaded & HEAVY
    assert not loaded & set(FOLDERS), "a root folder was imported by its bare name"


def test_the_commands_help_loads_nothing_heavy() -> None:
    script = "import sys; sys.argv = ['palestra', '--help']\nfrom palestra.cli import main\ntry: main()\n"
    assert not _modules_after(script + "except SystemExit: pass") & HEAVY


def _modules_after(script: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after `script`."""
    report = "\nimport sys; print('\\n' + ' '.join({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", script + report],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT / "tests",
    )
    return set(done.stdout.splitlines()[-1].split())
