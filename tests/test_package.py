"""What is built from the tree is complete: sdist, then wheel, then every package imported from it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = shutil.ignore_patterns(
    ".git", ".venv", "runs", "build", "dist", "*.egg-info", "__pycache__", ".*_cache"
)

IMPORT_ALL = """
import pkgutil, sys
sys.path.insert(0, sys.argv[1])
import palestra
assert palestra.__file__.startswith(sys.argv[1]), palestra.__file__
for module in pkgutil.walk_packages(palestra.__path__, "palestra."):
    if module.ispkg:
        __import__(module.name)
strays = [n for n, m in sys.modules.items() if n.startswith("palestra") and not m.__file__.startswith(sys.argv[1])]
assert not strays, strays
"""


@pytest.mark.slow
def test_a_wheel_built_from_the_sdist_holds_everything(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=SKIPPED)
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(copy)])
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    packed = {n for n in zipfile.ZipFile(wheel).namelist() if not n.startswith("palestra-")}
    expected = {n.removeprefix("src/") for n in _sources()}
    assert packed >= expected, sorted(expected - packed)
    target = tmp_path / "target"
    _run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    )
    _run([sys.executable, "-c", IMPORT_ALL, str(target)])


def _sources() -> set[str]:
    """Files that belong to the package, as paths below src."""
    found = set()
    for folder in (ROOT / "src" / "palestra").iterdir():
        files = folder.resolve().rglob("*") if folder.is_dir() else [folder]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts and file.suffix != ".pyc":
                inside = file.relative_to(folder.resolve()) if folder.is_dir() else ""
                found.add(str(Path("palestra", folder.name, inside)))
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
