"""The demo over several seeds: GiGPO, GRPO and the warm start side by side, on databases never seen in training.

Both estimators start from the same warm start of each seed and train on the same budget. Every run is a directory
that `palestra show` opens; a run that is complete is not run again.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from measure import Bench, machine
from palestra.cli.demo_run import Demo, DemoConfig
from palestra.rollouts.loop import run

ESTIMATORS = ("gigpo", "grpo")


@dataclass(frozen=True, slots=True)
class Run:
    """One estimator on one seed, as its summary.json has it."""

    seed: int
    estimator: str
    summary: dict[str, Any]


def main() -> None:
    """Run, or continue, all combinations and print the table."""
    bench = Bench(__doc__ or "", example="python benchmarks/demo_seeds.py --seeds 3")
    bench.parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... (default 3)")
    bench.parser.add_argument(
        "--dir", type=Path, default=Path("runs/demo-seeds"), help="where the runs are kept"
    )
    args = bench.parse()
    directory = args.dir.with_name(args.dir.name + "-quick") if args.quick else args.dir
    seeds = range(1 if args.quick else args.seeds)
    console = Console(stderr=args.json)
    runs = [_run(directory, _config(s, e, args.quick), console) for s in seeds for e in ESTIMATORS]
    if args.json:
        sys.stdout.write(orjson.dumps(_figures(runs)).decode() + "\n")
    else:
        console.print(_table(runs))


def _config(seed: int, estimator: str, quick: bool) -> DemoConfig:
    config = DemoConfig.make(seed=seed, estimator=estimator)
    if not quick:
        return config
    warm, train = replace(config.warm, steps=100), replace(config.train, steps=3)
    return replace(config, demonstrations=300, warm=warm, train=train, test_tasks=60, dev_tasks=0)


def _run(directory: Path, config: DemoConfig, console: Console) -> Run:
    estimator = config.train.estimator
    run_dir = directory / f"{estimator}-{config.seed}"
    if not (run_dir / "summary.json").exists():
        _share_warm_start(directory / f"{ESTIMATORS[0]}-{config.seed}", run_dir)
        console.rule(f"{estimator}, seed {config.seed}")
        run(Demo(run_dir, config, console).run())
    return Run(config.seed, estimator, orjson.loads((run_dir / "summary.json").read_bytes()))


def _share_warm_start(source: Path, target: Path) -> None:
    for part in ("model", "warm"):
        if source != target and (source / part).exists() and not (target / part).exists():
            shutil.copytree(source / part, target / part)


def _figures(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "runs": [{"seed": r.seed, "estimator": r.estimator, **r.summary} for r in runs],
        "smallest_gain": min(r.summary["after"]["success"] - r.summary["before"]["success"] for r in runs),
        "intervals_apart": all(r.summary["after"]["ci95"][0] > r.summary["before"]["ci95"][1] for r in runs),
    }


def _table(runs: Sequence[Run]) -> Table:
    table = Table("seed", "warm start", *ESTIMATORS, "gain, 95 % paired", box=None)
    for seed in dict.fromkeys(r.seed for r in runs):
        of_seed = {r.estimator: r.summary for r in runs if r.seed == seed}
        first = of_seed[ESTIMATORS[0]]
        gains = "; ".join(f"{e} {_points(s)}" for e, s in of_seed.items())
        table.add_row(
            str(seed), _span(first["before"]), *[_span(of_seed[e]["after"]) for e in ESTIMATORS], gains
        )
    return table


def _span(b: dict[str, Any]) -> str:
    return f"{b['success']:.1%} ({b['ci95'][0]:.1%} to {b['ci95'][1]:.1%})"


def _points(summary: dict[str, Any]) -> str:
    low, high = summary["difference_ci95"]
    return f"{100 * summary['difference']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


if __name__ == "__main__":
    main()
