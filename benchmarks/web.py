"""How fast the web world is on MiniWoB++, beside BrowserGym in the same run.

    python benchmarks/web.py             what it found, line by line
    python benchmarks/web.py --json      one object

Episodes of both gyms take turns, on the same pages and seeds, with text observations. A reset is measured on a page
that was played before (as the attempts of a group do) and, apart, on one that has to be loaded. BrowserGym is driven in
`.cache/browsergym/venv` (python -m venv, then pip install browsergym-core browsergym-miniwob); without it the ratios
are null. Memory is the proportional set size of all processes of the browser.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from measure import Bench
from palestra.envs.web.env import WebEnv
from palestra.envs.web.host import executable
from palestra.envs.web.miniwob import FRESH, root
from palestra.tasks.registry import find_task
from palestra.tasks.task import Task
from palestra.tasks.web.miniwob import make, pages

ROOT = Path(__file__).resolve().parent.parent
PEER = ROOT / ".cache" / "browsergym"
PAGES = ("click-button", "login-user", "click-checkboxes", "enter-text", "read-table", "choose-list", "click-tab",
         "click-option")  # fmt: skip
"""Pages of the comparison: forms, lists and tables that a text observation shows whole."""
STEPS = 4
GOALS = {"reset_p50_ms": 10.0, "step_p50_ms": 25.0, "screenshot_p50_ms": 60.0, "mb_per_episode": 80.0}


def main() -> None:
    """Measure and print."""
    bench = Bench("the web world beside BrowserGym", example="python benchmarks/web.py --quick --json")
    bench.parser.add_argument(
        "--episodes", type=int, help="episodes in a row for growth (default 500, --quick 40)"
    )
    args = bench.parse()
    facts: dict[str, Any] = {"miniwob_tasks_started": sweep(pages()[:: 10 if args.quick else 1])}
    facts |= side_by_side(args.repeats) | determinism(pages()[:: 20 if args.quick else 3])
    facts |= (
        pictures(args.repeats)
        | restores(args.repeats)
        | memory(8)
        | growth(args.episodes or (40 if args.quick else 500))
    )
    facts["goals"] = GOALS
    facts["goals_met"] = {name: facts[name] <= goal for name, goal in GOALS.items()}
    bench.show({}, **facts)


def sweep(names: Sequence[str]) -> int:
    """How many pages start, take ten random actions without an exception, and end or go on."""
    env, started = WebEnv(), 0
    for name in names:
        env.reset(options={"task": make(name, "test", 7)})
        rng = random.Random(name)
        for _ in range(10):
            if any(env.step(anything(env, rng))[2:4]):
                break
        env.score()
        started += 1
    env.close()
    return started


def determinism(names: Sequence[str]) -> dict[str, int]:
    """Pages that look the same twice over 50 random steps, in a context that was used and in a new one."""
    envs, same = [WebEnv(), WebEnv()], 0
    chosen = [name for name in names if name not in FRESH]
    for name in chosen:
        seen = [digests(env, make(name, "test", 9), 50) for env in envs]
        same += seen[0] == seen[1]
    for env in envs:
        env.close()
    return {"pages_played_twice": len(chosen), "pages_that_agree": same}


def digests(env: WebEnv, task: Task, steps: int) -> list[str]:
    """What random clicks and keys show."""
    _, info = env.reset(options={"task": task})
    found, rng = [info["state_digest"]], random.Random(task.id)
    for _ in range(steps):
        target = rng.choice([e.id for e in env.view.elements if e.id] or [1])
        *_, terminated, truncated, info = env.step(
            rng.choice([f"click {target}", f"fill {target} a", "press Tab"])
        )
        found.append(info["state_digest"])
        if terminated or truncated:
            _, info = env.reset(options={"task": task})
    return found


def anything(env: WebEnv, rng: random.Random) -> str:
    """A random action on a random element or place."""
    target = str(rng.choice([e.id for e in env.view.elements if e.id] or [1]))
    return rng.choice(
        [f"click {target}", f"fill {target} abc", "press Tab", f"hover {target}", "click 80,120", "type xy",
         f"drag {target} 100,150", "scroll 50", f"select {target} One", f"double_click {target}", "back"]
    )  # fmt: skip


def side_by_side(repeats: int) -> dict[str, Any]:
    """Resets and steps of both gyms in turn, in milliseconds, and their ratios."""
    ours, theirs = Times(), Times()
    env = WebEnv()
    with peer() as ask:
        for number in range(repeats):
            for page in PAGES[: 3 if repeats < 5 else None]:
                ours.add(episodes(env, page, number))
                if ask is not None and number < 2:
                    theirs.add([ask({"page": page, "seed": number, "steps": STEPS})])
    env.close()
    return ours.facts("") | theirs.facts("browsergym_") | {
        "reset_ratio": theirs.reset / ours.reset if theirs.resets else None,
        "step_ratio": theirs.step / ours.step if theirs.steps else None,
    }  # fmt: skip


class Times:
    """Seconds of resets and steps."""

    def __init__(self) -> None:
        self.resets: list[float] = []
        self.loads: list[float] = []
        self.steps: list[float] = []

    def add(self, played: Sequence[dict[str, Any]]) -> None:
        """Some episodes; the first of several had to load its page."""
        self.loads += [played[0]["reset_s"]] if len(played) > 1 else []
        self.resets += [e["reset_s"] for e in (played[1:] or played)]
        self.steps += [s for e in played for s in e["steps_s"]]

    @property
    def reset(self) -> float:
        """Median, in seconds."""
        return median(self.resets)

    @property
    def step(self) -> float:
        """Median, in seconds."""
        return median(self.steps)

    def facts(self, prefix: str) -> dict[str, Any]:
        """Medians in milliseconds."""
        named = {"reset": self.resets, "first_reset": self.loads, "step": self.steps}
        return {f"{prefix}{name}_p50_ms": 1000 * median(times) for name, times in named.items() if times}


def episodes(env: WebEnv, page: str, seed: int) -> list[dict[str, Any]]:
    """Five episodes of one page in a row, each with some clicks."""
    played = []
    for attempt in range(5):
        task = make(page, "train", seed * 100 + attempt)
        started = time.perf_counter()
        env.reset(options={"task": task})
        reset_s, steps_s = time.perf_counter() - started, []
        ids = [e.id for e in env.view.elements if e.id]
        for number in range(STEPS):
            started = time.perf_counter()
            *_, terminated, truncated, _ = env.step(f"click {ids[number % len(ids)]}")
            steps_s.append(time.perf_counter() - started)
            if terminated or truncated:
                break
        played.append({"reset_s": reset_s, "steps_s": steps_s})
    return played


@contextmanager
def peer() -> Iterator[Any]:
    """A function that plays an episode in BrowserGym, or None where that is not installed."""
    python = PEER / "venv" / "bin" / "python"
    if not python.exists():
        yield None
        return
    chromium = str(executable())
    link = PEER / "browsers" / "chromium-1117" / "chrome-linux" / "chrome"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(chromium)
    env = os.environ | {
        "PLAYWRIGHT_BROWSERS_PATH": str(PEER / "browsers"),
        "PALESTRA_CHROMIUM": chromium,
        "MINIWOB_URL": f"{(root() / 'miniwob').as_uri()}/",
    }
    command = [str(python), str(Path(__file__).with_name("browsergym_peer.py"))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def ask(order: dict[str, Any]) -> Any:
            process.stdin.write(json.dumps(order) + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            return json.loads(process.stdout.readline())  # type: ignore[union-attr]

        yield ask
        process.stdin.close()


def pictures(repeats: int) -> dict[str, float]:
    """Median of a screenshot, in milliseconds."""
    env, times = WebEnv(), []
    env.reset(options={"task": make("login-user", "train", 1)})
    for _ in range(repeats * 2):
        started = time.perf_counter()
        env.screenshot()
        times.append(time.perf_counter() - started)
    env.close()
    return {"screenshot_p50_ms": 1000 * median(times)}


def restores(repeats: int) -> dict[str, Any]:
    """Median of going back to a snapshot on a site, in milliseconds: its actions are played again."""
    env, task, times = WebEnv(), find_task("web-sites", "shop/order/200"), []
    env.reset(options={"task": task})
    actions = env.solution()[:-1]
    for action in actions:
        env.step(action)
    kept = env.snapshot()
    for _ in range(repeats):
        started = time.perf_counter()
        env.restore(kept)
        env.screenshot()
        times.append(time.perf_counter() - started)
    env.close()
    return {"restore_p50_ms": 1000 * median(times), "restored_actions": len(actions)}


def memory(count: int) -> dict[str, float]:
    """Megabytes for each of `count` more live episodes."""
    envs = [WebEnv() for _ in range(count + 1)]
    envs[0].reset(options={"task": make("click-button", "train", 0)})
    one = browser_mb()
    for number, env in enumerate(envs[1:], 1):
        env.reset(options={"task": make(PAGES[number % len(PAGES)], "train", number)})
        env.step("click 1")
    each = (browser_mb() - one) / count
    for env in envs:
        env.close()
    return {"mb_per_episode": each, "live_episodes": count + 1, "browser_mb_with_one": one}


def growth(count: int) -> dict[str, float]:
    """Megabytes of the browser after the first tenth of `count` episodes and at the end."""
    env, first = WebEnv(), 0.0
    for number in range(count):
        env.reset(options={"task": make(PAGES[number % 2], "train", number)})
        env.step("click 3")
        if number == count // 10:
            first = browser_mb()
    last = browser_mb()
    env.close()
    return {"episodes_in_a_row": count, "mb_after_a_tenth": first, "mb_at_the_end": last}


def browser_mb() -> float:
    """Proportional set size of the browser and Playwright's driver, in MB."""
    parents = {int(p.name): _parent(p) for p in Path("/proc").iterdir() if p.name.isdigit()}
    ours = [pid for pid in parents if pid != os.getpid() and _below(pid, parents)]
    return sum(map(_pss_kb, ours)) / 1024


def _below(pid: int, parents: dict[int, int]) -> bool:
    while pid > 1 and pid != os.getpid():
        pid = parents.get(pid, 0)
    return pid == os.getpid()


def _parent(process: Path) -> int:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _pss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


if __name__ == "__main__":
    main()
