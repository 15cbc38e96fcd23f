"""Writes docs/algorithms.md from the docstrings of the estimators, losses and samplers.

    python docs/algorithms.py           write
    python docs/algorithms.py --check   exit with 1 where the file is out of date

The docstrings are the reference; this only puts them on one page, with the tests that name each function.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from palestra.training import losses, samplers
from palestra.training.advantages import compat, estimators, reweighting, similarity

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "algorithms.md"
TITLE = """\
# Algorithms

Generated from the docstrings by `python docs/algorithms.py`. S is the number of decisions (rows of a step table), N
the number of trained tokens.
"""


def main() -> None:
    """Write the page, or check it."""
    page = render()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
    elif not PAGE.exists() or PAGE.read_text() != page:
        sys.exit("docs/algorithms.md is out of date: run python docs/algorithms.py")


def render() -> str:
    """The whole page."""
    tests = {p: p.read_text() for p in sorted((ROOT / "tests" / "training").rglob("test_*.py"))}
    covered = estimators | {"similar_anchors": similarity.similar_anchors}
    sections = [
        TITLE,
        "## Advantages\n",
        "Estimators are in `palestra.training.advantages.estimators`, by name.\n",
        *entries(covered.items(), tests),
        "## Advantages changed afterwards\n",
        "In `palestra.training.advantages.reweighting`.\n",
        *entries(functions(reweighting), tests),
        "## Quirks of published code\n",
        f"{fenced(compat.__doc__)}\n\n{fenced(quirk_list())}\n",
        "## Losses\n",
        f"In `palestra.training.losses`.\n\n{fenced(losses.__doc__)}\n",
        *entries(public(losses), tests),
        "## Samplers, allocators, filters and schedules\n",
        "In `palestra.training.samplers`.\n",
        *entries(public(samplers), tests),
    ]
    return "\n".join(sections).rstrip() + "\n"


def public(module: Any) -> list[tuple[str, Any]]:
    """What a package exports and documents, in order of name."""
    found = ((name, getattr(module, name)) for name in module.__all__)
    return [(name, item) for name, item in found if inspect.isroutine(item) or inspect.isclass(item)]


def functions(module: Any) -> list[tuple[str, Any]]:
    """The functions that a module defines, in order of name."""
    found = inspect.getmembers(module, inspect.isfunction)
    return [(name, item) for name, item in found if item.__module__ == module.__name__]


def entries(items: Iterable[tuple[str, Any]], tests: dict[Path, str]) -> list[str]:
    """One section per function or class."""
    return [entry(name, item, tests) for name, item in items]


def entry(name: str, item: Any, tests: dict[Path, str]) -> str:
    """Name, signature, docstring, and the tests that name it."""
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(item)))
    word = re.compile(rf"\b{name}\b")
    named = [path.relative_to(ROOT).as_posix() for path, text in tests.items() if word.search(text)]
    covers = ", ".join(f"`{path}`" for path in named)
    body = f"{name}{signature}\n\n{inspect.getdoc(item)}"
    return f"### {name}\n\n{fenced(body)}\n" + (f"\nTests: {covers}.\n" if covers else "")


def quirk_list() -> str:
    """What each quirk is: the text under its type."""
    source = inspect.getsource(compat)
    return source.split('"""What published code', 1)[1].split('"""', 1)[0].partition("\n")[2].strip()


def fenced(text: str | None) -> str:
    """A docstring as it is."""
    return f"```text\n{(text or '').strip()}\n```"


if __name__ == "__main__":
    main()
