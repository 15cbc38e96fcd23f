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

from palestra.training import config, decisions, losses, samplers
from palestra.training.advantages import adjusters, compat, estimators, reshapers, returns, similarity
from palestra.training.losses import objective
from palestra.training.pace import paces
from palestra.training.proximal import proximals
from palestra.training.replay import replays

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
        f"## How a run names them\n\n{(config.__doc__ or '').strip()}\n",
        "## From recorded rollouts to decisions\n",
        f"{fenced(decisions.__doc__)}\n",
        *entries({"discounted_returns": returns.discounted_returns}.items(), tests),
        "## Rewards changed before\n",
        "In `palestra.training.advantages.reshapers`, by name.\n",
        *entries(reshapers.items(), tests),
        "## Advantages\n",
        "Estimators are in `palestra.training.advantages.estimators`, by name.\n",
        *entries(covered.items(), tests),
        "## Advantages changed afterwards\n",
        "In `palestra.training.advantages.adjusters`, by name.\n",
        *entries(adjusters.items(), tests),
        "## Quirks of published code\n",
        f"{fenced(compat.__doc__)}\n\n{fenced(quirk_list())}\n",
        "## Losses\n",
        f"In `palestra.training.losses`; a run names {named(losses.losses)} as `loss`.\n\n{fenced(losses.__doc__)}\n",
        *entries(public(losses), tests),
        "## Importance corrections\n",
        "A run names them as `correction`; they compare the proximal policy with the one that sampled.\n",
        *entries(objective.corrections.items(), tests),
        "## Proximal policies\n",
        "A run names them as `proximal`.\n",
        *entries(proximals.items(), tests),
        "## Samplers, allocators, filters and schedules\n",
        f"In `palestra.training.samplers`; a run names {named(samplers.samplers)} as `sampler`.\n",
        f"{fenced(samplers.registry.__doc__)}\n",
        *entries(public(samplers), tests),
        "## When the next steps begin\n",
        "A run names them as `pace`.\n",
        *entries(paces.items(), tests),
        "## Replay\n",
        "A run names them as `replay`.\n",
        *entries(replays.items(), tests),
    ]
    return "\n".join(sections).rstrip() + "\n"


def public(module: Any) -> list[tuple[str, Any]]:
    """What a package exports and documents, in order of name."""
    found = ((name, getattr(module, name)) for name in module.__all__)
    return [(name, item) for name, item in found if inspect.isroutine(item) or inspect.isclass(item)]


def named(registry: Iterable[str]) -> str:
    """Names of a registry, in order."""
    return ", ".join(f"`{name}`" for name in registry)


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
