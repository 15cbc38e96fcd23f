"""Time of step-level credit on 512 rollouts of 50 steps with 2 kB of text per state.

    python benchmarks/advantages.py            tables
    python benchmarks/advantages.py --json     one object

Seconds are of CPU time on one core, so that other work on the machine does not count. gigpo_s and hgpo_s hold
everything from columns of text to one number per decision; the texts are new objects every time, so their hashes are
computed. seconds_per_million_rows is GiGPO's on a million rows of short anchors; `seconds_by_rows` shows that it is
linear. similarity_ratio is the time of a first-fit clustering with difflib, row by row, over that of
`similar_anchors`, on one group of 400 rows in 40 states (100 in 10 with --quick), and both find the same clusters;
`similar_edited_s` is ours where every row's text differs in a few characters, so that none is a repeat.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher
from functools import partial
from statistics import median
from typing import Any

from measure import Bench
from palestra.training.advantages import estimators
from palestra.training.advantages.similarity import similar_anchors
from palestra.training.table import StepTable

GROUPS, ROLLOUTS_PER_GROUP, STEPS, STATES = 64, 8, 50, 40
TEXT_CHARACTERS = 2048
WORDS = (
    "red",
    "blue",
    "stove",
    "shelf",
    "drawer",
    "door",
    "key",
    "lamp",
    "book",
    "desk",
    "take",
    "open",
    "close",
)


def main() -> None:
    """Measure and print."""
    bench = Bench("Step-level credit", example="python benchmarks/advantages.py --quick --json")
    args = bench.parse()
    repeats = min(args.repeats, 7)
    sizes = [25_600, 100_000] if args.quick else [25_600, 100_000, 1_000_000]
    by_rows = {size: least_s(partial(short, size), gigpo, 3) for size in sizes}
    bench.show(
        {},
        gigpo_s=median_s(texts, gigpo, repeats),
        hgpo_s=median_s(texts, hgpo, repeats),
        seconds_per_million_rows=by_rows[sizes[-1]] / sizes[-1] * 1e6,
        seconds_by_rows={str(size): seconds for size, seconds in by_rows.items()},
        **similarity(states=10 if args.quick else STATES),
    )


def gigpo(columns: dict[str, Any]) -> None:
    """From columns to one number per decision."""
    estimators["gigpo"](StepTable.from_columns(**columns))


def hgpo(columns: dict[str, Any]) -> None:
    """From columns to one number per decision, with two steps of history."""
    estimators["hgpo"](StepTable.from_columns(**columns))


def texts() -> dict[str, Any]:
    """The columns of 25,600 decisions; every anchor a new string of 2 kB."""
    pick = random.Random(0)
    states = [[sentence(pick).encode() for _ in range(STATES)] for _ in range(GROUPS)]
    columns = skeleton(GROUPS, ROLLOUTS_PER_GROUP, STEPS)
    anchors = [pick.choice(states[group]).decode() for group in columns["group"]]
    return columns | {"anchor": anchors}


def short(rows: int) -> dict[str, Any]:
    """The columns of `rows` decisions in 50 steps a rollout, with short anchors."""
    columns = skeleton(rows // (ROLLOUTS_PER_GROUP * STEPS), ROLLOUTS_PER_GROUP, STEPS)
    return columns | {"anchor": [f"state {i % STATES}" for i in range(len(columns["group"]))]}


def skeleton(groups: int, rollouts: int, steps: int) -> dict[str, Any]:
    """Group, rollout, turn and reward of complete rollouts that are scored at the end."""
    rows = [(g, r, t) for g in range(groups) for r in range(rollouts) for t in range(steps)]
    return {
        "group": [g for g, _, _ in rows],
        "rollout": [g * rollouts + r for g, r, _ in rows],
        "turn": [t for _, _, t in rows],
        "reward": [float(t == steps - 1 and r % 3 == 0) for _, r, t in rows],
    }


def sentence(pick: random.Random) -> str:
    """2 kB of words."""
    return " ".join(pick.choice(WORDS) for _ in range(TEXT_CHARACTERS))[:TEXT_CHARACTERS]


def seconds(make: Callable[[], Any], run: Callable[[Any], object], repeats: int) -> list[float]:
    """CPU time of `run` on new input each time; making it is not measured."""
    taken = []
    for _ in range(repeats):
        data = make()
        start_s = time.process_time()
        run(data)
        taken.append(time.process_time() - start_s)
    return taken


def median_s(make: Callable[[], Any], run: Callable[[Any], None], repeats: int) -> float:
    """Median of `seconds`."""
    return median(seconds(make, run, repeats))


def least_s(make: Callable[[], Any], run: Callable[[Any], None], repeats: int) -> float:
    """Least of `seconds`."""
    return min(seconds(make, run, repeats))


def similarity(states: int) -> dict[str, float]:
    """similarity_ratio, similar_s, difflib_s and similar_edited_s of one group of 10 rows per state."""
    pick = random.Random(1)
    texts = [sentence(pick) for _ in range(states)]
    repeats = texts * 10
    edited = [text[:100] + f"{i:05d}" + text[105:] for i, text in enumerate(repeats)]
    start_s = time.process_time()
    theirs = difflib_clusters(repeats, 0.95)
    difflib_s = time.process_time() - start_s
    if not partition(clusters(repeats)) == partition(theirs) == partition(clusters(edited)):
        raise AssertionError("the clusters differ")
    similar_s = min(seconds(lambda: repeats, clusters, 5))
    edited_s = min(seconds(lambda: edited, clusters, 3))
    return {
        "similarity_ratio": difflib_s / similar_s,
        "difflib_s": difflib_s,
        "similar_s": similar_s,
        "similar_edited_s": edited_s,
    }


def clusters(anchors: Sequence[str]) -> list[Hashable]:
    """The clusters of one group."""
    return similar_anchors(anchors, ["g"] * len(anchors))


def difflib_clusters(anchors: Sequence[str], threshold: float) -> list[int]:
    """First fit, row by row, against the first member of each cluster: how GiGPO's code does it."""
    firsts: list[str] = []
    numbers = []
    for text in anchors:
        fit = (i for i, first in enumerate(firsts) if SequenceMatcher(None, text, first).ratio() >= threshold)
        found = next(fit, len(firsts))
        if found == len(firsts):
            firsts.append(text)
        numbers.append(found)
    return numbers


def partition(names: Sequence[Hashable]) -> list[int]:
    """Cluster numbers in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


if __name__ == "__main__":
    main()
