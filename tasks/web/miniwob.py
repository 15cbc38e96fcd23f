"""MiniWoB++ as task sets: `miniwob` is split by seed, `miniwob-tasks` by page.

Every page of the installed `miniwob` package is there. In `miniwob` each page has its own seeds for train, dev and
test, so that a page is known and its content is not; in `miniwob-tasks` a page belongs to one split as a whole.
"""

from __future__ import annotations

import functools
import hashlib
from importlib.util import find_spec
from pathlib import Path

from palestra.tasks.errors import TaskError, TaskParameterError
from palestra.tasks.task import SPLITS, Budget, Split, Task, TaskSet

SEEDS: dict[Split, int] = {"train": 20, "dev": 5, "test": 5}
"""Episodes per page."""
_FIRST: dict[Split, int] = {"train": 0, "dev": 100_000, "test": 200_000}
_BUDGET = Budget(turns=20, tokens=32_768, wall_s=600, command_s=20)


def pages() -> list[str]:
    """The pages of the package. Raises TaskError where it is not installed."""
    spec = find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise TaskError("miniwob is not installed: pip install 'palestra[web]'")
    root = Path(spec.submodule_search_locations[0]) / "html" / "miniwob"
    return sorted(path.stem for path in root.glob("*.html"))


@functools.cache
def load(only: str = "", train: int = SEEDS["train"], turns: int = _BUDGET.turns) -> TaskSet:
    """All pages, or those named in `only` (separated by commas), with `train` seeds for training.

    Raises TaskParameterError for a page that there is not.
    """
    seeds = SEEDS | {"train": train}
    tasks = [
        make(page, split, _FIRST[split] + number, turns)
        for split in SPLITS
        for page in _chosen(only)
        for number in range(seeds[split])
    ]
    return TaskSet("miniwob", tasks)


@functools.cache
def load_by_page(seeds: int = 5) -> TaskSet:
    """Each page in one split: a tenth in dev, a fifth in test, by a hash of its name."""
    tasks = [make(page, split_of(page), _FIRST[split_of(page)] + n) for page in pages() for n in range(seeds)]
    return TaskSet("miniwob-tasks", sorted(tasks, key=lambda task: SPLITS.index(task.split)))


def split_of(page: str) -> Split:
    """The split of a page in `miniwob-tasks`."""
    number = hashlib.sha256(page.encode()).digest()[0] % 10
    return "dev" if number == 0 else "test" if number < 3 else "train"


def make(page: str, split: Split, seed: int, turns: int = _BUDGET.turns) -> Task:
    """One episode of a page. The instruction is the page's own and appears when it starts."""
    return Task(
        id=f"miniwob/{page}/{seed:06d}",
        family="web",
        env="palestra/Web-v0",
        split=split,
        instruction="{goal}",
        data={"miniwob": page, "seed": seed, "kind": page},
        budget=_BUDGET.model_copy(update={"turns": turns}),
    )


def _chosen(only: str) -> list[str]:
    known = pages()
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        raise TaskParameterError(f"miniwob has no page {unknown[0]!r}; it has {', '.join(known)}")
    return wanted or known
