"""Whether a small policy learns to click in a real browser: a warm start on noisy demonstrations, then GiGPO.

    python benchmarks/web_learning.py                 three seeds, a table
    python benchmarks/web_learning.py --json --seeds 1

Six kinds of pages of MiniWoB++ (`web_lesson.py`); the policy plays them through the proxy, as every agent does. At
each look it plays episodes whose seeds are not those it learned on. A seed is one observation: intervals are Student's
over seeds. A run that is complete is not run again, one that was interrupted begins anew from its warm start.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from learning import LESSONS, QUICK, Budget, Run, interval, trained
from measure import Bench

LESSON = LESSONS["web"]
ESTIMATOR = "gigpo"


def main() -> None:
    """Run, or continue, all seeds and print."""
    bench = Bench("a small policy on pages of MiniWoB++", example="python benchmarks/web_learning.py --quick")
    bench.parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, ... (default 3)")
    bench.parser.add_argument(
        "--dir", type=Path, default=Path("runs/web-learning"), help="where runs are kept"
    )
    args = bench.parse()
    budget = replace(LESSON.budget, **QUICK) if args.quick else LESSON.budget
    directory = args.dir.with_name(f"{args.dir.name}-quick") if args.quick else args.dir
    console = Console(stderr=True)
    seeds = range(min(args.seeds, 1) if args.quick else args.seeds)
    runs = [trained(directory, LESSON, ESTIMATOR, seed, budget, console) for seed in seeds]
    bench.show({}, **figures(runs, budget))


def figures(runs: list[Run], budget: Budget) -> dict[str, Any]:
    """Success on held-out seeds at each look: of each run, and mean with interval."""
    steps = range(0, budget.steps + 1, budget.look_every)
    looks = zip(*[run.success for run in runs], strict=True)
    return {
        "looks": dict(zip([f"step {step}" for step in steps], map(interval, looks), strict=True)),
        "seeds": {str(run.seed): list(run.success) for run in runs},
        "gain": interval([run.end - run.success[0] for run in runs]),
        "episodes_per_look": budget.looked_at,
        "episodes_trained_on": budget.steps * budget.groups_per_step * budget.group_size,
        "turns_at_the_end": interval([run.turns for run in runs]),
    }


if __name__ == "__main__":
    main()
