"""Paired, interleaved measurement: what every script in benchmarks/ uses.

    bench = Bench("Cost of one commit", example="python benchmarks/commit.py --quick")
    args = bench.parse()
    bench.show({"1,000 tokens": measure({"old": old, "new": new}, repeats=args.repeats)})

The candidates take turns (A B A B ...), so that other work on the machine meets all of them alike, and each
is compared with the first one pair by pair. That ratio is what to quote; seconds alone say little on a shared
machine. CPU time includes child processes once they were waited for. It is no profiler.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from statistics import median, quantiles
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

REPORTED_PACKAGES = ("palestra", "numpy", "torch", "transformers", "vllm")


@dataclass(frozen=True, slots=True)
class Reading:
    """What the clocks show, in seconds since some fixed moment."""

    wall_s: float
    cpu_s: float


Candidate = Callable[[], object]
Clock = Callable[[], Reading]


def system_clock() -> Reading:
    """Wall time, and the CPU time of this process and of its finished children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return Reading(time.perf_counter(), sum(u.ru_utime + u.ru_stime for u in usages))


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of each repetition of one candidate, in order."""

    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...]

    def summary(self) -> dict[str, float]:
        """Median and smallest wall time, and median CPU time."""
        least, wall, cpu = min(self.wall_s), median(self.wall_s), median(self.cpu_s)
        return {"wall_median_s": wall, "wall_min_s": least, "cpu_median_s": cpu}


@dataclass(frozen=True, slots=True)
class Ratio:
    """Time of a candidate over that of the baseline, pair by pair; below 1 it is faster."""

    pairs: tuple[float, ...]

    def summary(self) -> dict[str, float]:
        """Median of the pairs with their quartiles; all three are one number for a single pair."""
        pairs = self.pairs * 2 if len(self.pairs) == 1 else self.pairs
        low, middle, high = quantiles(pairs, n=4, method="inclusive")
        return {"median": middle, "q1": low, "q3": high}


@dataclass(frozen=True, slots=True)
class Measurement:
    """Timings by candidate; the first one is the baseline."""

    timings: Mapping[str, Timing]

    @property
    def baseline(self) -> str:
        """Name of the candidate that the others are compared with."""
        return next(iter(self.timings))

    def wall_ratio(self, name: str) -> Ratio:
        """Wall time of `name` over the baseline's."""
        return _ratio(self.timings[name].wall_s, self.timings[self.baseline].wall_s)

    def cpu_ratio(self, name: str) -> Ratio | None:
        """CPU time of `name` over the baseline's; None where the baseline used too little to be seen."""
        baseline = self.timings[self.baseline].cpu_s
        return _ratio(self.timings[name].cpu_s, baseline) if min(baseline) > 0 else None

    def summary(self) -> dict[str, dict[str, Any]]:
        """Everything as plain numbers, by candidate."""
        return {name: self._summary(name) for name in self.timings}

    def _summary(self, name: str) -> dict[str, Any]:
        numbers: dict[str, Any] = {**self.timings[name].summary(), "repeats": len(self.timings[name].wall_s)}
        if name != self.baseline:
            cpu = self.cpu_ratio(name)
            numbers["wall_ratio"] = self.wall_ratio(name).summary()
            numbers["cpu_ratio"] = cpu.summary() if cpu else None
        return numbers


def measure(
    candidates: Mapping[str, Candidate], *, repeats: int = 15, warmup: int = 1, clock: Clock = system_clock
) -> Measurement:
    """Run the candidates in turn, `warmup` rounds unmeasured and `repeats` rounds measured.

    One call should last a millisecond or more; loop inside the candidate where it does not. Raises ValueError
    for no candidates, for fewer than one repeat, and when a call was too short for the clock.
    """
    if not candidates or repeats < 1 or warmup < 0:
        raise ValueError(f"need candidates, repeats >= 1 and warmup >= 0, got {candidates, repeats, warmup}")
    rounds: dict[str, list[Reading]] = {name: [] for name in candidates}
    for _ in range(warmup + repeats):
        for name, run in candidates.items():
            rounds[name].append(_time(name, run, clock))
    return Measurement({name: _timing(readings[warmup:]) for name, readings in rounds.items()})


class Bench:
    """Command line and output of one benchmark script. Add its own options to `parser` before `parse`."""

    def __init__(self, title: str, *, example: str) -> None:
        self.title = title
        self.parser = argparse.ArgumentParser(description=title, epilog=f"example: {example}")
        add = self.parser.add_argument
        add("--json", action="store_true", help="print one JSON object instead of tables")
        add("--quick", action="store_true", help="few repeats and small inputs, to see it run")
        add("--repeats", type=int, help="measured rounds (default 15, with --quick 3)")
        self._json = False

    def parse(self, argv: Sequence[str] | None = None) -> argparse.Namespace:
        """The options; `args.repeats` is filled in."""
        args = self.parser.parse_args(argv)
        if args.repeats is None:
            args.repeats = 3 if args.quick else 15
        self._json = args.json
        return args

    def show(self, cases: Mapping[str, Measurement], **facts: object) -> None:
        """Print what was measured in each case, facts of the script's own, and what it ran on."""
        if self._json:
            results = {case: measurement.summary() for case, measurement in cases.items()}
            body = {**facts, "benchmark": self.title, "cases": results, "machine": machine()}
            print(orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY).decode())
            return
        console = Console()
        console.print(*(_table(f"{self.title}: {case}", result) for case, result in cases.items()), sep="\n")
        for name, value in {**facts, **machine()}.items():
            console.print(f"{name}: {value}", highlight=False, markup=False)


def machine() -> dict[str, Any]:
    """What the numbers depend on: cores, load, system, Python and package versions."""
    installed = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    return {
        "cores": os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: installed[name] for name in REPORTED_PACKAGES if name in installed},
    }


def _time(name: str, run: Candidate, clock: Clock) -> Reading:
    before = clock()
    run()
    after = clock()
    if after.wall_s <= before.wall_s:
        raise ValueError(f"candidate {name!r} took no time by this clock: let it do more work per call")
    return Reading(after.wall_s - before.wall_s, after.cpu_s - before.cpu_s)


def _timing(readings: Sequence[Reading]) -> Timing:
    return Timing(tuple(r.wall_s for r in readings), tuple(r.cpu_s for r in readings))


def _ratio(candidate: Sequence[float], baseline: Sequence[float]) -> Ratio:
    return Ratio(tuple(a / b for a, b in zip(candidate, baseline, strict=True)))


def _table(title: str, measurement: Measurement) -> Table:
    table = Table(
        "candidate", "wall ms", "min ms", "CPU ms", "wall ratio (q1 to q3)", "CPU ratio", title=title
    )
    for name, numbers in measurement.summary().items():
        times = [f"{1000 * numbers[key]:,.3f}" for key in ("wall_median_s", "wall_min_s", "cpu_median_s")]
        table.add_row(name, *times, _cell(numbers.get("wall_ratio")), _cell(numbers.get("cpu_ratio")))
    return table


def _cell(ratio: Mapping[str, float] | None) -> str:
    return f"{ratio['median']:.3f} ({ratio['q1']:.3f} to {ratio['q3']:.3f})" if ratio else ""
