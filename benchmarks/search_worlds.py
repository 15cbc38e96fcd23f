"""What searching costs: the part of benchmarks/worlds.py about palestra/Search-v0.

Passages are generated: 60 to 110 words, drawn as in a language (Zipf) from 200,000 coined ones; a query is six words of
one passage, common ones included, which is the worst case for an index of words.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from palestra.envs.search.env import SearchEnv
from palestra.tasks.task import Budget, Task

PASSAGES, LARGE = 100_000, 1_000_000
QUICK_PASSAGES, QUICK_LARGE = 6_000, 20_000
VOCABULARY = 200_000
_BLOCK = 1000
EPISODE = 10
"""Queries before the next reset."""


def search(args: Any) -> Mapping[str, object]:
    """Building an index, steps and snapshots, and a large corpus in a process of its own."""
    count, large = (QUICK_PASSAGES, QUICK_LARGE) if args.quick else (PASSAGES, LARGE)
    with tempfile.TemporaryDirectory() as folder:
        found = _in_child("bm25", count, Path(folder))
        big = _in_child("tantivy", large, Path(folder))
    return {
        "search_passages": count,
        "index_100k_s" if not args.quick else "index_s": found["index_s"],
        "search_index_cpu_s": found["index_cpu_s"],
        "search_step_p50_ms": found["step_p50_ms"],
        "search_step_p99_ms": found["step_p99_ms"],
        "search_step_cpu_p50_ms": found["step_cpu_p50_ms"],
        "search_read_p50_ms": found["read_p50_ms"],
        "search_snapshot_p50_ms": found["snapshot_p50_ms"],
        "search_peak_gb": found["peak_gb"],
        "search_large_passages": large,
        "search_large_index_s": big["index_s"],
        "search_large_index_cpu_s": big["index_cpu_s"],
        "search_large_p50_ms": big["step_p50_ms"],
        "search_large_p99_ms": big["step_p99_ms"],
        "search_large_cpu_p50_ms": big["step_cpu_p50_ms"],
        "search_large_peak_gb": big["peak_gb"],
    }


def write_corpus(path: Path, count: int) -> None:
    """`count` passages in Search-R1's format; the same on every machine."""
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(_texts(count)):
            # Coined words need no escapes, so this is JSON.
            file.write(f'{{"id": "p{number:07}", "contents": "\\"Passage {number}\\"\\n{text}"}}\n')


def _texts(count: int) -> Iterator[str]:
    rng = np.random.default_rng(0)
    syllables = np.array(
        [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "ar", "en", "is")]
    )
    words = ["".join(rng.choice(syllables, rng.integers(2, 5))) for _ in range(VOCABULARY)]
    weights = np.cumsum(1 / np.arange(2, VOCABULARY + 2))
    for start in range(0, count, _BLOCK):
        lengths = rng.integers(60, 111, min(_BLOCK, count - start))
        drawn = np.searchsorted(weights, rng.random(int(lengths.sum())) * weights[-1]).tolist()
        ends = np.cumsum(lengths).tolist()
        for first, last in zip([0, *ends], ends, strict=False):
            yield " ".join(map(words.__getitem__, drawn[first:last]))


def _in_child(kind: str, count: int, folder: Path) -> dict[str, float]:
    """Measured in a process of its own, so that the peak of its memory is its own."""
    corpus = folder / f"{count}.jsonl"
    write_corpus(corpus, count)
    command = [sys.executable, __file__, kind, str(corpus)]
    environment = os.environ | {"PALESTRA_CACHE": str(folder / "cache")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
    return dict(json.loads(done.stdout))


def _measure(kind: str, corpus: Path) -> dict[str, float]:
    task = _task(kind, corpus)
    env = SearchEnv()
    before_s = time.process_time()
    index_s = _seconds(lambda: env.reset(options={"task": task}))
    index_cpu_s = time.process_time() - before_s
    queries = _queries(corpus)
    env.step(_call("search", query=queries.pop()))
    steps: list[tuple[float, float]] = []
    reads_s: list[float] = []
    for start in range(0, len(queries), EPISODE):
        env.reset(options={"task": task})
        steps += [_both(partial(env.step, _call("search", query=q))) for q in queries[start:][:EPISODE]]
        reads_s += [
            _seconds(partial(env.step, _call("open", id=name))) for name in list(env._known.found)[:5]
        ]
    forks_s = [_seconds(lambda: env.restore(env.snapshot())) for _ in range(500)]
    steps_s = [wall_s for wall_s, _ in steps]
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "index_s": index_s,
        "index_cpu_s": index_cpu_s,
        "step_p50_ms": 1000 * median(steps_s),
        "step_p99_ms": 1000 * sorted(steps_s)[int(0.99 * len(steps_s))],
        "step_cpu_p50_ms": 1000 * median(cpu_s for _, cpu_s in steps),
        "read_p50_ms": 1000 * median(reads_s),
        "snapshot_p50_ms": 1000 * median(forks_s),
        "peak_gb": peak_kb / 2**20,
    }


def _queries(corpus: Path, count: int = 301) -> list[str]:
    """Six words of passages that are spread over the beginning of the corpus; none twice."""
    rng = np.random.default_rng(1)
    with corpus.open(encoding="utf-8") as lines:
        texts = [json.loads(next(lines))["contents"].split("\n")[1] for _ in range(10 * count)][::10]
    return [" ".join(rng.choice(text.split(), 6)) for text in texts]


def _task(kind: str, corpus: Path) -> Task:
    data = {"corpus": {"path": str(corpus), "format": "search-r1"}, "retriever": {"kind": kind}}
    return Task(
        id="t",
        family="search",
        env="palestra/Search-v0",
        split="test",
        instruction="?",
        data=data | {"answers": ["?"]},
        budget=Budget(turns=1_000_000),
    )


def _call(name: str, **arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def _both(run: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds; of the two, other work on the machine changes the second less."""
    before_s = time.process_time()
    wall_s = _seconds(run)
    return wall_s, time.process_time() - before_s


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], Path(sys.argv[2]))))
